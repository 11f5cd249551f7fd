"""What pytest needs to run the suite: async tests, and the fixture `world` over every store and both faces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.harness import FACES, World
from contract.stores import STORES

LONGEST_TEST = 40.0


def worlds(*faces: str) -> list[Any]:
    """Every store, through the given faces (through all of them, if none is given)."""
    return [pytest.param((store, face), id=f"{store}-{face}") for store in STORES for face in faces or FACES]


def on(*faces: str) -> pytest.MarkDecorator:
    """For what only one face has."""
    return pytest.mark.parametrize("world", worlds(*faces), indirect=True)


@pytest.fixture(params=worlds())
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    store, face = request.param
    return World(face, STORES[store], tmp_path)


MUTEXES: dict[str, Callable[..., Any]] = {
    "lock": lambda client, name, **options: client.lock(name, **options),
    "rlock": lambda client, name, **options: client.rlock(name, **options),
    "write": lambda client, name, **options: client.rwlock(name, **options).write,
    "semaphore": lambda client, name, **options: client.semaphore(name, 1, **options),
}


@pytest.fixture(params=MUTEXES)
def mutex(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Each kind that can be used as a mutex: `mutex(client, name, **options)`."""
    return MUTEXES[request.param]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(_run(test, given, pyfuncitem.funcargs.get("world")))
    return True


async def _run(test: Callable[..., Any], given: dict[str, Any], world: World | None) -> None:
    try:
        async with asyncio.timeout(LONGEST_TEST):
            await test(**given)
    finally:
        if world is not None:
            await world.end()
