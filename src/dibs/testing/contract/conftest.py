"""The fixtures and hooks of the tests in this directory."""

from dibs.testing.contract.seats import ana, bob, seats
from dibs.testing.contract.worlds import (
    mutex,
    pytest_configure,
    pytest_generate_tests,
    pytest_pycollect_makeitem,
    pytest_runtest_makereport,
    world,
)

__all__ = [
    "ana",
    "bob",
    "mutex",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_pycollect_makeitem",
    "pytest_runtest_makereport",
    "seats",
    "world",
]
