"""The worlds and seats of dibs.testing.contract, on one store of each kind, whatever `--dibs-store` asks for."""

from __future__ import annotations

import pytest

from dibs.testing.contract.harness import APIS
from dibs.testing.contract.seats import ana, bob, seats
from dibs.testing.contract.stores import SERVERLESS, Subject
from dibs.testing.contract.worlds import mutex, pytest_pycollect_makeitem, world
from lab.servers import shared
from store.sqlite.conftest import connect, path

__all__ = [
    "ana", "bob", "connect", "mutex", "path", "pytest_generate_tests", "pytest_pycollect_makeitem", "seats",
    "world",
]  # fmt: skip
FRESH = {
    **SERVERLESS,
    "zookeeper": shared.fresh,
    "redis": shared.fresh_redis,
    "postgresql": shared.fresh_postgresql,
    "mysql": shared.fresh_mariadb,
}
SUBJECTS = [Subject(name, fresh) for name, fresh in FRESH.items()]
FIRST_TIER = {"memory", "sqlite", "memory-aio", "sqlite-blocking"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        worlds = [((one, api), f"{one.name}-{api}") for one in SUBJECTS for api in APIS]
        metafunc.parametrize("world", [_param(*one) for one in worlds], indirect=True)
    if "seats" in metafunc.fixturenames:
        metafunc.parametrize("seats", [_param(one, one.name) for one in SUBJECTS], indirect=True)


def _param(value: object, name: str) -> object:
    return pytest.param(value, id=name, marks=[] if name in FIRST_TIER else pytest.mark.gate)
