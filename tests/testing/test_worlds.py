"""What the published suite does around each of its tests."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

from dibs.testing.contract.harness import FACES, World
from dibs.testing.contract.stores import SERVERLESS, Subject
from dibs.testing.contract.worlds import _in_a_loop


@pytest.mark.parametrize("face", FACES)
def test_a_world_ends_with_its_test_also_if_that_fails(face: str, tmp_path: Path) -> None:
    clients: list[Any] = []

    async def body(world: World) -> None:
        clients.append(world.client())
        await world.actor("an actor of this test")(lambda: clients[0].lock("a").acquire())
        raise ZeroDivisionError

    test = _in_a_loop(body)
    assert not inspect.iscoroutinefunction(test)
    with pytest.raises(ZeroDivisionError):
        test(world=World(face, Subject("memory", SERVERLESS["memory"]), tmp_path))
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
