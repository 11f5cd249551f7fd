"""Whatever answers at a server's address: the call ends by its deadline and says what was wrong, memory stays bounded,
nothing is taken for a reply that is none, and nothing is left.

The `bad_peers.py` of each store has the nonsense of one protocol. All cases of a table run at once, as each only waits.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends.mysql import wire
from dibs.backends.redis import connection
from lab import leaks
from lab.listener import Listener, Manner, is_mute
from store.faults.kit import PATIENCE
from store.mysql import bad_peers as peers_mysql
from store.postgresql import bad_peers as peers_postgresql
from store.redis import bad_peers as peers_redis
from store.zookeeper import bad_peers as peers_zookeeper

pytestmark = [pytest.mark.gate, pytest.mark.timeout(200)]
APIS = ("sync", pytest.param("async", marks=pytest.mark.soak))
SECRET = "s3cret"
Cases = Mapping[str, tuple[Manner, str]]
TABLES: dict[str, Cases] = {
    "redis-before": peers_redis.BEFORE,
    "redis-after": peers_redis.AFTER,
    "redis-wrong": peers_redis.WRONG,
    "mysql": peers_mysql.CASES,
    "postgresql": peers_postgresql.CASES,
    "zookeeper-before": peers_zookeeper.BEFORE,
    "zookeeper-sessions": peers_zookeeper.SESSIONS,
    "zookeeper-after": peers_zookeeper.AFTER,
}
LESS = 1 << 20
"""Bytes of a reply after which it is cut off in these tests: a flood of 64 MiB keeps a small machine busy."""


def url_of(scheme: str, bad: Listener) -> str:
    return bad.url if scheme in ("redis", "zookeeper") else f"{scheme}://ana:{SECRET}@{bad.host}/shop"


def taken(api: str, url: str, timeout: float = 0.5) -> Any:
    """A hold, None, or what an acquire raises."""

    async def ask() -> Any:
        async with dibs.aio.connect(url, lease=60) as client:
            return await client.lock("a").acquire(timeout=timeout)

    try:
        if api == "async":
            return asyncio.run(ask())
        with dibs.connect(url, lease=60) as client:
            return client.lock("a").acquire(timeout=timeout)
    except dibs.DibsError as error:
        return error


def refused(api: str, scheme: str, bad: Listener, timeout: float = 0.5) -> str:
    error = taken(api, url_of(scheme, bad), timeout)
    assert isinstance(error, dibs.StoreError), error
    text = str(error)
    assert f'"a" on {scheme}://' in text
    assert text.isprintable()
    assert len(text) < 2000
    assert SECRET not in text
    return text


def all_refused(api: str, scheme: str, cases: Cases, timeout: float = 2.5) -> None:
    def one(case: str) -> None:
        manner, why = cases[case]
        with Listener(scheme, manner) as bad:
            text = refused(api, scheme, bad, timeout)
            assert 0 < bad.calls < 100, f"{case}: it is called without a pause"
        assert re.search(why, text), f"{case}: {text}"

    watch = nullcontext() if scheme == "mysql" else leaks.watch(within=PATIENCE)  # see the test at the end
    with watch, ThreadPoolExecutor(len(cases)) as pool:
        for done in [pool.submit(one, case) for case in cases]:
            done.result()


@pytest.fixture(autouse=True)
def _less(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(connection.MOST, wire.MOST) <= 64 << 20
    monkeypatch.setattr(connection, "MOST", LESS)
    monkeypatch.setattr(wire, "MOST", LESS)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("table", TABLES)
def test_no_reply_of_ours(table: str, api: str) -> None:
    all_refused(api, table.partition("-")[0], TABLES[table])


class Peak:
    """How much more memory this process had in use at any moment than at the beginning."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._read("VmRSS")

    def bytes(self) -> int:
        return self._read("VmHWM") - self._before

    @staticmethod
    def _read(field: str) -> int:
        found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("scheme", ["redis", "mysql", "zookeeper"])
def test_replies_without_an_end(scheme: str, api: str) -> None:
    """Their cost in memory is bounded."""
    floods: Cases = {
        "redis": peers_redis.FLOODS, "mysql": peers_mysql.FLOODS, "zookeeper": peers_zookeeper.FLOODS,
    }[scheme]  # fmt: skip
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the kernel does not tell how much memory was in use")
    peak = Peak()
    all_refused(api, scheme, floods)
    assert peak.bytes() < 400 << 20, "small numbers in an array grow tenfold; without a bound it is GB"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("scheme", ["redis", "mysql", "postgresql", "zookeeper"])
def test_a_mute_server_is_asked_again_with_a_pause(scheme: str, api: str) -> None:
    """Until the time of the caller is over."""
    with Listener(scheme, is_mute) as bad:
        refused(api, scheme, bad, timeout=1.5)
        assert 0 < bad.calls < 100


# Redis: nothing that is refused above is refused for another reason.


@pytest.mark.parametrize("api", APIS)
def test_a_server_that_answers_well_would_be_used(api: str) -> None:
    for manner in (peers_redis.answering(peers_redis.granted), peers_redis.pushes_amid_answers):
        with Listener("redis", manner) as bad:
            assert getattr(taken(api, bad.url, PATIENCE), "token", 0), "a push is no reply, and this one is well"


def test_a_reply_of_a_megabyte_in_pieces() -> None:
    answer = wire.Reply()
    whole = peers_mysql.rows(*[(b"x" * 250,)] * 2000)
    parts = [whole[at : at + 1000] for at in range(0, len(whole), 1000)]
    assert [answer.feed(part) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(answer.result()[0]) == 2000


def test_a_closed_client_of_mysql_leaves_no_descriptor() -> None:
    gc.disable()
    try:
        with Listener("mysql", is_mute) as bad, leaks.watch(within=1):
            refused("sync", "mysql", bad)
    finally:
        gc.enable()
