from contract.plugin import mutex, pytest_pyfunc_call, world
from contract.seats import ana, bob, seats

__all__ = ["ana", "bob", "mutex", "pytest_pyfunc_call", "seats", "world"]
