"""What befalls one of many does not befall the others: one damaged key among many holds, one error for each of those
who asked; and what a user's own function raises is told to whoever asks, once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import dibs
import dibs.aio
from dibs.testing.contract.harness import APIS, World, eventually
from lab.faults import BlackHole, Refuse
from lab.proxy import DOWN, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import apis_of, fresh_name

pytestmark = pytest.mark.early
both_apis = apis_of("redis", "redis://127.0.0.1:1")

LEASE = 9.0
TIME_OUT = 40.0
TASKS = 4
PASSWORD = "open-sesame"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("redis")
    users = {"mute": f">{PASSWORD} ~* resetchannels +@all"}
    with Server(Redis(users=users)) as made:
        yield made


@both_apis
async def test_one_damaged_key_ends_no_other_hold(world: World, server: Server) -> None:
    """They are renewed in one batch, and what is refused for good to one is not refused to all."""
    client, ana = world.client(server.url(), lease=LEASE), world.actor("ana")
    names = [fresh_name() for _ in range(3)]
    bad, *good = [await ana(lambda name=name: client.lock(name).acquire()) for name in names]
    key = f"dibs:{names[0]}|line"
    server.ask("DEL", key)
    server.ask("SET", key, "x")
    await eventually(bad.lost.is_set, within=40)
    deadline = clock() + good[0].remaining
    await eventually(lambda: clock() + good[0].remaining > deadline + LEASE / 4, within=40)  # renewed since
    for hold in good:
        hold.check()
        await ana(hold.release)


@pytest.mark.parametrize(
    ("is_refused", "is_known", "timeout"), [(False, True, 0), (True, True, 0.3), (True, False, 0), (False, False, 0.3)]
)
def test_each_task_is_told_of_its_own_lock(server: Server, is_refused: bool, is_known: bool, timeout: float) -> None:
    """They wait for one connection, or for the first subscription, and it fails for all of them: the error that tells
    one of them bears its name, so it is its own."""
    names = [fresh_name() for _ in range(TASKS)]

    async def play(proxy: Proxy) -> list[Any]:
        async with dibs.aio.connect(f"redis://{ports.HOST}:{proxy.port}") as client:
            if is_known:
                await (await client.lock(fresh_name()).acquire()).release()
            proxy.add(BlackHole(), DOWN)
            if is_refused:
                proxy.add(Refuse())
            tries = [asyncio.ensure_future(client.lock(name).acquire(timeout=timeout)) for name in names]
            await asyncio.to_thread(proxy.reset)
            found = await asyncio.gather(*tries, return_exceptions=True)
            proxy.heal()
            return found

    with Proxy((ports.HOST, server.port)) as proxy:
        told_each_of(asyncio.run(play(proxy)), names)


def test_each_task_is_told_that_it_is_refused_for_good(server: Server) -> None:
    """Without the right to listen: all who ask at once, and all who ask again while another try is under way."""

    async def play() -> None:
        async with dibs.aio.connect(server.url(user="mute", password=PASSWORD)) as client:
            for _ in range(2):
                names = [fresh_name() for _ in range(TASKS)]
                tries = (client.lock(name).acquire(timeout=TIME_OUT) for name in names)
                told_each_of(await asyncio.gather(*tries, return_exceptions=True), names)

    asyncio.run(play())


def told_each_of(errors: list[Any], names: list[str]) -> None:
    assert all(isinstance(error, dibs.StoreError) for error in errors), errors
    assert [error.name for error in errors] == names


class Down(redis.CredentialProvider):
    """Whoever knows the password does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        raise RuntimeError("the token service is down")


@pytest.mark.parametrize("api", APIS)
def test_credentials_that_cannot_be_had(server: Server, api: str, caplog: pytest.LogCaptureFixture) -> None:
    provider = Down()
    driver = redis.Redis(port=server.port, credential_provider=provider)
    caplog.set_level(logging.DEBUG, "dibs")

    async def ask() -> None:
        async with dibs.aio.connect(driver) as client:
            await client.lock("a").acquire(timeout=0.5)

    def ask_blocking() -> None:
        with dibs.connect(driver) as client:
            client.lock("a").acquire(timeout=0.5)

    with pytest.raises(dibs.StoreUnavailable, match=r'"a" on redis://.*RuntimeError.*Next: ') as caught:
        asyncio.run(ask()) if api == "aio" else ask_blocking()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert 0 < provider.asked < 30, "asked again and again"
    assert len([record for record in caplog.records if record.name.startswith("dibs")]) < 5, caplog.text
    assert not any(record.exc_info for record in caplog.records), "no turn of a thread failed"
    driver.close()
