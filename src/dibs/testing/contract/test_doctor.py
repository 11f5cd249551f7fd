"""The findings of `doctor`: promises, notes and dangers with fixes, without side effects."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

import dibs
from dibs.testing.contract.harness import World

LEVELS = get_args(get_type_hints(dibs.Finding)["level"])


async def test_which_store_it_is_stands_first_and_once(world: World) -> None:
    client = world.client()
    first, *others = await world(client.doctor)
    assert first.level == "about"
    assert client._core.shown in first.what
    assert [finding for finding in others if finding.level == "about"] == []
    await world(client.close)
    with pytest.raises(dibs.Closed) as caught:
        await world(client.doctor)
    assert caught.value.store == client._core.shown


async def test_there_are_promises_and_every_danger_has_a_fix(world: World) -> None:
    findings = await world(world.client().doctor)
    assert [finding for finding in findings if finding.level == "promise"]
    for finding in findings:
        assert isinstance(finding, dibs.Finding)
        assert finding.level in LEVELS
        assert finding.what.strip()
        assert (finding.what + finding.fix).isprintable()
        assert not finding.fix or finding.level in ("note", "danger"), finding
        assert finding.fix or finding.level != "danger", finding


async def test_asking_changes_nothing(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    before = await world(client.doctor)
    assert await world(client.doctor) == before
    hold.check()
    (holder,) = (await world.inspect(client, "a")).holders
    assert holder.token == hold.token
    assert [info.name for info in await world.locks(client)] == ["a"]


async def test_ping_is_answered_until_the_client_is_closed(world: World) -> None:
    client = world.client()
    assert 0 <= await world(lambda: client.ping(timeout=60)) < 60
    for wrong in (-1, None, "1"):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            await world(lambda wrong=wrong: client.ping(wrong))
    await world(client.close)
    with pytest.raises(dibs.Closed):
        await world(client.ping)
