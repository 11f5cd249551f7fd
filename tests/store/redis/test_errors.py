"""How a server's error is classified, also as servers before Redis 7 word it: they wrap the error of a command within a
script. Of many concurrent requests each gets its own error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import dibs
import dibs.aio
from dibs.backends.redis.errors import LATER, Refusal, final
from dibs.testing.contract.harness import World, eventually
from lab.faults import BlackHole, Refuse
from lab.proxy import DOWN, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import fresh_name
from store.faults.kit import both_apis

_RUNNING = "ERR Error running script (call to f_5ac3cc76b5c1ad1b8a3a8f1b1c1f0b3b5d3b2a10): @user_script:{0}: "
CHECKED = _RUNNING + "@user_script: {0}: {1}"
"""An error from a check before a command within a script runs."""
ANSWERED = _RUNNING + "{1}"
"""An error of the command itself."""
BEFORE_7 = {
    "OOM": CHECKED.format(187, "-OOM command not allowed when used memory > 'maxmemory'.  "),
    "READONLY": CHECKED.format(187, "-READONLY You can't write against a read only replica.  "),
    "NOREPLICAS": CHECKED.format(187, "-NOREPLICAS Not enough good replicas to write.  "),
    "MISCONF": CHECKED.format(187, "-MISCONF Errors writing to the AOF file: No space left on device  "),
    "WRONGTYPE": ANSWERED.format(22, "WRONGTYPE Operation against a key holding the wrong kind of value"),
}
SINCE_7 = {
    "OOM": "OOM command not allowed when used memory > 'maxmemory'. script: 5ac3cc76, on @user_script:187.",
    "READONLY": "READONLY You can't write against a read only replica. script: 5ac3cc76, on @user_script:187.",
    "CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "NOSCRIPT": "NOSCRIPT No matching script. Please use EVAL.",
    "MOVED": "MOVED 3999 127.0.0.1:6381",
}
DENIED = [
    CHECKED.format(22, "The user executing the script can't run this command or subcommand"),
    CHECKED.format(22, "The user executing the script can't access at least one of the keys"),
    "NOPERM this user has no permissions to run the 'evalsha' command",
]
DAMAGED = [
    ANSWERED.format(29, "user_script:29: dibs-damaged top"),
    "ERR user_script:29: dibs-damaged top script: 5ac3cc76, on @user_script:29.",
]


def test_its_code() -> None:
    for code, text in (*BEFORE_7.items(), *SINCE_7.items()):
        assert Refusal(text).code == code


def test_what_we_sent_is_not_shown() -> None:
    """A claim's id is in it: anyone who knows it can release the claim."""
    refused = Refusal("ERR unknown command 'EVALSHA', with args beginning with: '5ac3cc76' '1' 'dibs:a|line' ")
    assert refused.text == "ERR unknown command 'EVALSHA'"


def test_an_error_that_may_pass_is_retried_also_where_it_is_wrapped() -> None:
    texts = {**SINCE_7, **BEFORE_7}
    assert "CLUSTERDOWN" in LATER
    for code in LATER & set(texts):
        error = final(Refusal(texts[code]), b"dibs:a|line")
        assert isinstance(error, dibs.StoreUnavailable)
        assert code in str(error)
        assert "damaged" not in str(error)


def test_an_error_that_stays_names_the_right_or_the_key() -> None:
    damaged = [*DAMAGED, BEFORE_7["WRONGTYPE"]]
    for text, parts in (*((text, ["dibs doctor"]) for text in DENIED),
                        *((text, ["damaged", "dibs:a|line"]) for text in damaged)):  # fmt: skip
        error = final(Refusal(text), b"dibs:a|line")
        assert not isinstance(error, dibs.StoreUnavailable)
        assert all(part in str(error) for part in parts), text


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


@pytest.mark.gate
@both_apis
async def test_one_damaged_key_ends_no_other_hold(world: World, server: Server) -> None:
    """One batch renews them; a final error of one is not an error of all."""
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


@pytest.mark.gate
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
    """Without the right to subscribe: all concurrent callers, also during a retry."""

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
    def __init__(self) -> None:
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        raise RuntimeError("the token service is down")


@pytest.mark.gate
@both_apis
async def test_credentials_that_cannot_be_had(world: World, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    provider = Down()
    driver: Any = redis.Redis(port=server.port, credential_provider=provider)
    caplog.set_level(logging.DEBUG, "dibs")
    client, ana = world.client(driver), world.actor("ana")
    with pytest.raises(dibs.StoreUnavailable, match=r'"a" on redis://.*RuntimeError.*Next: ') as caught:
        await ana(lambda: client.lock("a").acquire(timeout=0.5))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert 0 < provider.asked < 30, "asked again and again"
    assert len([record for record in caplog.records if record.name.startswith("dibs")]) < 5, caplog.text
    assert not any(record.exc_info for record in caplog.records), "no turn of a thread failed"
    driver.close()
