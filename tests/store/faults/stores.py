"""The stores of the fault tests, one row each: its server, how its messages are found on the wire, how an operator ends
its connections, and what stands on the server past dibs.

    @on(LEASED)                             # one test for each store of that list
    @both_apis
    async def test_it(world: World, store: Store, server: Server, name: str) -> None: ...

`LEASED` stores keep a claim for its lease, whatever happens to connections. In `SESSION` mode a claim ends with its
connection. ZooKeeper is between: its session survives a connection, so it is in both `SURVIVING` and `SERVERS`.
Tests of one server run in one xdist group: one worker, one server.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dibs.backends.redis.scripts import JOIN, LEAVE, RENEW
from lab import splitters
from lab.faults import Cut, Match, at_message
from lab.proxy import UP, Proxy
from lab.servers import ports
from lab.servers.lone import MARIADB, POSTGRESQL, REDIS, Ways
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.redis import Redis
from lab.servers.supervisor import Kind, Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_ensemble import standing
from lab.splitters import Splitter
from lab.witness import First
from store.zookeeper import faulty as zookeeper

LONGEST_SESSION = 60
"""Seconds that ZooKeeper grants at most."""
SLOW = (
    "busy-reply-threshold 20", "key-load-delay 0", "loading-process-events-interval-bytes 1024", "rdbcompression no",
)  # fmt: skip
"""So that `refusals.py` can make it busy, and loading, for as long as a test needs."""


@dataclass(frozen=True)
class Store:
    name: str
    program: str
    """For `require`: the server."""
    kind: Callable[[], Kind]
    asks: Callable[[str, str], Match]
    """Requests of a verb ("join", "renew", "leave") on a name."""
    answers: Callable[[Proxy, str, str], First]
    """The reply to the first such request from now on."""
    end_connections: Callable[[Server], int]
    """All of ours, as an operator would; gives how many."""
    stands: Callable[[Server, str], bool]
    """Whether anybody stands there on that name, past dibs."""
    splitter: Splitter | None = None
    query: str = ""
    lasts: bool = True
    """A claim survives its connection."""
    lease: float = 60.0
    """A long lease under which a silent connection is still given up soon."""

    def url(self, server: Server, **parts: str) -> str:
        return server.url(**parts) + self.query

    def through(self, server: Server, proxy: Proxy) -> str:
        return self.url(server).replace(f"{ports.HOST}:{server.port}", f"{ports.HOST}:{proxy.port}")


def seen(proxy: Proxy, match: Match, direction: Any = UP) -> First:
    """`struck` once such a message came to the proxy; the message goes on."""
    found = First(match)
    proxy.add(Cut(at_message(match=lambda message: bool(found(message)) and False)), direction)
    return found


# Redis: requests name their script and key, replies are known by their shape.

_SCRIPTS = {"join": JOIN, "renew": RENEW, "leave": LEAVE}
_REDIS_REPLIES = {
    "join": re.compile(rb"\*6\r\n:|\$16\r\n\d{16}\r\n"),
    "renew": re.compile(rb"\*\d+\r\n:\d+\r\n(?:\*5\r\n|[*$]-1\r\n)"),
    "leave": re.compile(rb"\A(?:\*2\r\n:\d+\r\n)?:[01]\r\n\Z"),
}


def _redis_asks(name: str, verb: str) -> Match:
    key, sha = f"dibs:{name}|line".encode(), _SCRIPTS[verb].sha.encode()
    return lambda message: key in message and sha in message


def _redis_stands(server: Server, name: str) -> bool:
    """The head of the queue has a claim. Tombstones stay until they expire; they and their like have 50 characters."""
    body = server.ask("HGET", f"dibs:{name}|line", "h")[43:]
    return bool(body[50:] if body.startswith("s") else body)


# PostgreSQL: a message is what came in one piece, as libpq sends it.

_POSTGRESQL_REPLIES = {
    "join": re.compile(rb"\d{16} \d+ s \d+ [01] "),
    "renew": re.compile(rb"\d{16} (?:-|\d+:[01]:)"),
    "leave": re.compile(rb"\d{16} (?:\d+ )?[01](?:C|\0)"),
}


def _postgresql_asks(name: str, verb: str) -> Match:
    return lambda message: f"dibs:{name}".encode() in message and f"dibs_2_{verb}".encode() in message


def _postgresql_stands(server: Server, name: str) -> bool:
    """Claims that have not expired: the next one on the name removes the others."""
    now = "date_part('epoch', clock_timestamp()) * 1000000"
    return server.ask(f"SELECT 1 FROM dibs.dibs_claims WHERE name = 'dibs:{name}' AND until > {now}") != ""


# MySQL: the reply is the first packet down behind the request; nothing else is under way then.


def _mysql_asks(name: str, verb: str) -> Match:
    """By a routine, or by the prepared statements of the free path (execute is 0x17): to take ends with the name, to
    leave with an id behind it."""
    called, key = f"dibs_2_{verb}".encode(), f"dibs:{name}".encode()

    def asks(message: bytes) -> bool:
        if message[4:5] != b"\x17" or key not in message:
            return called in message
        return verb == ("join" if message.endswith(key) else "leave")

    return asks


def _mysql_stands(server: Server, name: str) -> bool:
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    there = f"WHERE name = 'dibs:{name}' AND until > {now}"
    heads = f"SELECT 1 FROM dibs_queues {there} AND id <> ''"
    return server.ask(f"{heads} UNION SELECT 1 FROM dibs_claims {there}") != ""


# ZooKeeper: a request has its kind and its number, and the reply bears the number.


def _zookeeper_asks(name: str, verb: str) -> Match:
    kinds = {"join": (zookeeper.CREATE, zookeeper.CREATE2), "leave": (zookeeper.DELETE, zookeeper.MULTI)}
    return zookeeper.asks(name, *kinds[verb])


def _ends(ways: Ways) -> Callable[[Server], int]:
    return lambda server: sum(ways.end_connections(server, kind) for kind in ("normal", "waiting"))


def _behind(asks: Callable[[str, str], Match], shapes: dict[str, re.Pattern[bytes]]) -> Any:
    """The reply is the first message of that shape that comes down behind the request."""

    def answers(proxy: Proxy, name: str, verb: str) -> First:
        asked, shape = seen(proxy, asks(name, verb)), shapes.get(verb, re.compile(b""))
        return First(lambda message: asked.struck and shape.search(message) is not None)

    return answers


def _zookeeper_stands(server: Server, name: str) -> bool:
    """Any session at all: closed clients have none."""
    return bool(standing(server.ask("dump", within=5)))


def _no_connections(server: Server) -> int:
    raise NotImplementedError("ZooKeeper's operator cannot end connections")


_ROWS = (
    Store(
        "redis", "redis", lambda: Redis(*SLOW, persist="always"), _redis_asks,
        _behind(_redis_asks, _REDIS_REPLIES), _ends(REDIS), _redis_stands, splitter=splitters.resp,
    ),
    Store(
        "postgresql", "postgresql", lambda: PostgreSQL("max_connections=40"), _postgresql_asks,
        _behind(_postgresql_asks, _POSTGRESQL_REPLIES), _ends(POSTGRESQL), _postgresql_stands,
    ),
    Store(
        "mysql", "mariadb", MariaDB, _mysql_asks, _behind(_mysql_asks, {}), _ends(MARIADB), _mysql_stands,
        splitter=splitters.mysql,
    ),
    Store(
        "zookeeper", "zookeeper", lambda: ZooKeeper(f"maxSessionTimeout={LONGEST_SESSION * 1000}", tick_ms=300),
        _zookeeper_asks, lambda proxy, *what: zookeeper.answer_to(proxy, _zookeeper_asks(*what)),
        _no_connections, _zookeeper_stands, splitter=splitters.zookeeper,
        lease=18.0,
    ),
)  # fmt: skip
STORES = {store.name: store for store in _ROWS}
for _name in ("postgresql", "mysql"):
    STORES[f"{_name}-session"] = replace(
        STORES[_name], name=f"{_name}-session", stands=lambda *_: False, query="?mode=session", lasts=False
    )
LEASED = ("redis", "postgresql", "mysql")
SURVIVING = (*LEASED, "zookeeper")
SESSION = ("postgresql-session", "mysql-session")
SERVERS = (*SURVIVING, *SESSION)


def row(name: str, *more: Any, marks: Any = ()) -> Any:
    """A parameter set that begins with that store."""
    group = pytest.mark.xdist_group(f"faults-{STORES[name].program}")
    return pytest.param(
        STORES[name], *more, id="-".join([name, *map(_word, more)]), marks=[group, pytest.mark.early, *marks]
    )


def on(stores: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("store", [row(name) for name in stores])


def _word(value: Any) -> str:
    return str(getattr(value, "__name__", value))
