from contract.plugin import mutex, pytest_pyfunc_call, world

__all__ = ["mutex", "pytest_pyfunc_call", "world"]
