"""What the published suite does around each of its tests."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dibs.testing.contract.clocks import clock_of
from dibs.testing.contract.harness import APIS, World, eventually, lasted, passed
from dibs.testing.contract.stores import PARTS, SERVERLESS, Subject, chosen
from dibs.testing.contract.worlds import _in_a_loop

MEMORY = Subject("memory", SERVERLESS["memory"])


@pytest.mark.parametrize("api", APIS)
def test_a_world_ends_with_its_test_also_if_that_fails(api: str, tmp_path: Path) -> None:
    clients: list[Any] = []

    async def body(world: World) -> None:
        clients.append(world.client())
        await world.actor("an actor of this test")(lambda: clients[0].lock("a").acquire())
        raise ZeroDivisionError

    test = _in_a_loop(body)
    assert not inspect.iscoroutinefunction(test)
    with pytest.raises(ZeroDivisionError):
        test(world=World(api, MEMORY, tmp_path))
    assert "closed" in repr(clients[0])
    assert "an actor of this test" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("store", SERVERLESS)
def test_what_a_store_can_do_is_known_without_opening_it(store: str) -> None:
    places: list[Path] = []

    def fresh(place: Path) -> str:
        places.append(place)
        return SERVERLESS[store](place)

    subject = Subject(store, fresh)
    assert subject.capabilities >= {"fair", "rw", "permits", "atomic-try", "cells", "leases"}
    assert subject.capabilities is subject.capabilities
    (place,) = places
    assert not place.exists()


@pytest.mark.parametrize("api", APIS)
def test_on_memory_time_passes_only_while_a_test_waits_for_it(api: str, tmp_path: Path) -> None:
    async def body(world: World) -> None:
        client = world.client(lease=100)
        ana, bob = world.actors("ana", "bob")
        begun = world.now()
        hold = await ana(lambda: client.lock("a", renew=False).acquire())
        await asyncio.to_thread(time.sleep, 0.05)
        assert world.now() - begun < 0.01, "it stands still"
        got, seconds = await lasted(bob(lambda: client.lock("a").acquire(timeout=40)))
        assert got is None
        assert 40 <= seconds < 42
        assert not hold.lost.is_set()
        await passed(30)
        assert not hold.lost.is_set()
        await eventually(hold.lost.is_set)
        assert 90 <= world.now() - begun < 100

    with clock_of(MEMORY):
        _in_a_loop(body)(world=World(api, MEMORY, tmp_path))


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        (["acme_locks"], "--dibs-store acme_locks: not a store"),
        (["acme_locks:"], "not a store"),
        (["x=dibs.nowhere:fresh"], "No module named 'dibs.nowhere'"),
        (["dibs.testing:nothing"], "has no attribute 'nothing'"),
        (["memory", "memory"], "two stores are called alike"),
    ],
)
def test_what_names_no_store_is_said(wishes: list[str], said: str) -> None:
    with pytest.raises(pytest.UsageError, match=said):
        chosen(_config(wishes))


def test_without_a_store_the_serverless_ones_are_asked_everything() -> None:
    assert {name: subject.part for name, subject in chosen(_config([])).items()} == {
        "memory": "whole",
        "sqlite": "whole",
    }


def test_a_part_is_chosen_for_one_store_or_for_all() -> None:
    asked = chosen(_config(["memory", "sqlite"], ["store", "sqlite=verbs"]))
    assert {name: subject.part for name, subject in asked.items()} == {"memory": "store", "sqlite": "verbs"}
    for wrong in ("half", "redis=store", "sqlite=", "=store="):
        with pytest.raises(pytest.UsageError, match=f"--dibs-part {wrong}: .*{', '.join(PARTS)}"):
            chosen(_config(["sqlite"], [wrong]))


def _config(wishes: list[str], parts: list[str] | None = None) -> Any:
    given = {"dibs_store": wishes, "dibs_part": parts or []}
    return SimpleNamespace(stash=pytest.Stash(), getoption=given.__getitem__)
