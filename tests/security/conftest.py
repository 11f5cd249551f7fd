from dibs.testing.contract.seats import ana, bob, seats
from dibs.testing.contract.worlds import mutex, pytest_generate_tests, pytest_pycollect_makeitem, world
from store.sqlite.conftest import connect, crew, path

__all__ = [
    "ana",
    "bob",
    "connect",
    "crew",
    "mutex",
    "path",
    "pytest_generate_tests",
    "pytest_pycollect_makeitem",
    "seats",
    "world",
]
