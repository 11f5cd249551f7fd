"""Cells: versioned values that any client reads, and writes at the version that it read."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import dibs
from dibs.core.cells import LARGEST
from dibs.core.queue import CELLS
from dibs.testing.contract.harness import World
from dibs.testing.contract.worlds import above_the_store, every_form, needs, on

pytestmark = needs(CELLS)


def plus_one(value: bytes | None) -> bytes:
    return b"%d" % (int(value or b"0") + 1)


async def test_what_was_set_is_read_by_everybody(world: World) -> None:
    client, other = world.client(), world.client()
    assert client.cell("a").name == "a"
    assert repr(client.cell("a")).endswith(f'Cell "a" on {client._core.shown}>')
    assert await world(client.cell("a").get) == (None, 0)
    assert await world(lambda: client.cell("a").set(b"one", 0)) == 1
    assert await world(other.cell("a").get) == (b"one", 1)
    assert await world(lambda: other.cell("a").set(b"two", 1)) == 2
    assert await world(client.cell("a").get) == (b"two", 2)


async def test_a_value_is_kept_as_it_is(world: World) -> None:
    client, other = world.client(), world.client()
    for version, value in enumerate((b"", bytes(range(256)), bytes(LARGEST))):
        assert await world(lambda version=version, value=value: client.cell("a").set(value, version)) == version + 1
        assert await world(other.cell("a").get) == (value, version + 1)
    assert await world(lambda: other.cell("a").update(lambda there: there[1:])) == (bytes(LARGEST - 1), 4)


async def test_setting_at_another_version_is_a_conflict(world: World) -> None:
    client, other = world.client(), world.client()
    await world(lambda: client.cell("a").set(b"one", 0))
    await world(lambda: client.cell("a").set(b"two", 1))
    for version in (0, 1, 3, 2**63):
        with pytest.raises(dibs.Conflict, match=f"version 2, not at {version}") as caught:
            await world(lambda version=version: other.cell("a").set(b"three", version))
        assert (caught.value.name, caught.value.store) == ("a", client._core.shown)
        assert "read the value again" in str(caught.value)
    assert await world(client.cell("a").get) == (b"two", 2)


async def test_a_cell_outlives_its_writer(world: World) -> None:
    writer, other = world.connect(), world.client()
    await world(other.cell("b").get)
    await world(lambda: writer.cell("a").set(b"x", 0))
    await world(writer.close)
    assert await world(other.cell("a").get) == (b"x", 1)
    with pytest.raises(dibs.Closed):
        await world(writer.cell("a").get)


# Cell.update


@above_the_store
async def test_update_gives_what_it_wrote(world: World) -> None:
    cell = world.client().cell("a")
    assert await world(lambda: cell.update(plus_one)) == (b"1", 1)
    assert await world(lambda: cell.update(plus_one)) == (b"2", 2)
    assert await world(cell.get) == (b"2", 2)
    assert await world(lambda: cell.update(lambda value: value)) == (b"2", 3), "another version of the same value"


@above_the_store
async def test_update_tries_again_if_somebody_else_came_before(world: World) -> None:
    client, other = world.client(), world.client()
    cell = client.cell("a")
    seen: list[bytes | None] = []
    slot, put = cell._core._slot, cell._core._slot.put

    async def late_put(value: bytes, version: int) -> int:
        if len(seen) < 3:
            theirs = other.cell("a").update(lambda there: (there or b"") + b"-")
            if inspect.isawaitable(theirs):
                await theirs
        return int(await put(value, version))

    def change(value: bytes | None) -> bytes:
        seen.append(value)
        return (value or b"") + b"+"

    slot.put = late_put
    assert await world(lambda: cell.update(change)) == (b"--+", 3)
    assert seen == [None, b"-", b"--"]


@every_form
async def test_every_update_counts(world: World) -> None:
    clients = [world.client() for _ in range(4)]

    async def counts(n: int) -> list[int]:
        cell, actor = clients[n % 4].cell("a"), world.actor(f"counter {n}")
        return [(await actor(lambda: cell.update(plus_one)))[1] for _ in range(10)]

    versions = await asyncio.gather(*(counts(n) for n in range(8)))
    assert await world(clients[0].cell("a").get) == (b"80", 80)
    assert sorted(version for mine in versions for version in mine) == list(range(1, 81))
    assert all(mine == sorted(mine) for mine in versions)


@above_the_store
async def test_update_gives_up_when_others_are_always_first(world: World) -> None:
    """It raises Conflict after pauses of a few seconds in total."""
    client, other = world.client(), world.client()
    cell, theirs, tries = client.cell("a"), other.cell("a"), 0
    slot, put = cell._core._slot, cell._core._slot.put
    pauses: list[float] = []

    async def late_put(value: bytes, version: int) -> int:
        nonlocal tries
        tries += 1
        before = theirs.set(b"theirs", version)
        if inspect.isawaitable(before):
            await before
        return int(await put(value, version))

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    slot.put, client._core.runtime.sleep = late_put, sleep
    with pytest.raises(dibs.Conflict, match="in a row") as caught:
        await world(lambda: cell.update(lambda _: b"mine"))
    assert (caught.value.name, caught.value.store) == ("a", client._core.shown)
    assert "take a lock" in str(caught.value)
    assert 10 <= tries <= 1000
    assert 0.01 < sum(pauses) < 30
    assert await world(theirs.get) == (b"theirs", tries)


@above_the_store
async def test_what_the_function_raises_is_raised(world: World) -> None:
    cell = world.client().cell("a")
    await world(lambda: cell.set(b"x", 0))

    def fail(value: bytes | None) -> bytes:
        raise ZeroDivisionError(value)

    with pytest.raises(ZeroDivisionError):
        await world(lambda: cell.update(fail))
    assert await world(cell.get) == (b"x", 1)


@above_the_store
async def test_a_value_is_bytes_and_has_its_limit(world: World) -> None:
    cell = world.client().cell("a")
    for given in (None, "x", 1, bytearray(b"x"), memoryview(b"x"), [b"x"]):
        with pytest.raises(TypeError, match=f"bytes, not {type(given).__name__}"):
            await world(lambda given=given: cell.set(given, 0))
        with pytest.raises(TypeError, match=f"bytes, not {type(given).__name__}"):
            await world(lambda given=given: cell.update(lambda _: given))
    large = bytes(LARGEST + 1)
    with pytest.raises(ValueError, match=str(LARGEST)):
        await world(lambda: cell.set(large, 0))
    with pytest.raises(ValueError, match=str(LARGEST)):
        await world(lambda: cell.update(lambda _: large))
    assert await world(cell.get) == (None, 0)


NO_VERSIONS: list[tuple[Any, type[Exception]]] = [
    (None, TypeError),
    ("0", TypeError),
    (0.0, TypeError),
    (False, TypeError),
    (-1, ValueError),
]


@above_the_store
async def test_a_version_is_what_get_gave(world: World) -> None:
    cell = world.client().cell("a")
    for version, error in NO_VERSIONS:
        with pytest.raises(error, match="version must be"):
            await world(lambda version=version: cell.set(b"x", version))
    assert await world(cell.get) == (None, 0)


@on("aio")
async def test_a_cancelled_update_happened_or_not(world: World) -> None:
    client, other = world.client(), world.client()
    for turns in range(30):
        cell = client.cell(f"c{turns}")
        task = asyncio.ensure_future(cell.update(plus_one))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert await other.cell(f"c{turns}").update(plus_one) in ((b"1", 1), (b"2", 2))
