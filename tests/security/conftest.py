from contract.plugin import mutex, pytest_pyfunc_call, world
from contract.seats import ana, bob, seats
from store.sqlite.conftest import connect, crew, path

__all__ = ["ana", "bob", "connect", "crew", "mutex", "path", "pytest_pyfunc_call", "seats", "world"]
