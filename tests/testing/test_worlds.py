"""The setup and teardown of the published suite."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dibs.testing.contract.harness import APIS, World
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


def test_stores_and_parts_are_chosen_by_options() -> None:
    for wishes, said in (
        (["acme_locks"], "--dibs-store acme_locks: not a store"),
        (["acme_locks:"], "not a store"),
        (["x=dibs.nowhere:fresh"], "No module named 'dibs.nowhere'"),
        (["dibs.testing:nothing"], "has no attribute 'nothing'"),
        (["memory", "memory"], "two stores are called alike"),
    ):
        with pytest.raises(pytest.UsageError, match=said):
            chosen(_config(wishes))
    whole = {name: subject.part for name, subject in chosen(_config([])).items()}
    assert whole == {"memory": "whole", "sqlite": "whole"}
    asked = chosen(_config(["memory", "sqlite"], ["store", "sqlite=verbs"]))
    assert {name: subject.part for name, subject in asked.items()} == {"memory": "store", "sqlite": "verbs"}
    for wrong in ("half", "redis=store", "sqlite=", "=store="):
        with pytest.raises(pytest.UsageError, match=f"--dibs-part {wrong}: .*{', '.join(PARTS)}"):
            chosen(_config(["sqlite"], [wrong]))


def _config(wishes: list[str], parts: list[str] | None = None) -> Any:
    given = {"dibs_store": wishes, "dibs_part": parts or []}
    return SimpleNamespace(stash=pytest.Stash(), getoption=given.__getitem__)
