"""What the attacks are given: the worlds of dibs.testing.contract, over more stores than those that need no server."""

from __future__ import annotations

import pytest

from dibs.testing.contract.harness import APIS
from dibs.testing.contract.seats import ana, bob, seats
from dibs.testing.contract.worlds import mutex, pytest_pycollect_makeitem, world
from security.stores import ATTACKED
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores = ATTACKED.values()
    if "world" in metafunc.fixturenames:
        worlds = [pytest.param((one, api), id=f"{one.name}-{api}") for one in stores for api in APIS]
        metafunc.parametrize("world", worlds, indirect=True)
    if "seats" in metafunc.fixturenames:
        metafunc.parametrize("seats", [pytest.param(one, id=one.name) for one in stores], indirect=True)
