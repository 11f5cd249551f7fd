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
from dataclasses import dataclass
from typing import Any

import pytest

from dibs.backends.redis.scripts import JOIN, LEAVE, RENEW
from lab import splitters
from lab.faults import Cut, Match, at_message
from lab.proxy import UP, Proxy
from lab.servers import mariadb_lone, ports, postgresql_lone, redis_lone
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.redis import Redis
from lab.servers.supervisor import Kind, Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_ensemble import standing
from lab.splitters import Splitter
from lab.witness import First

LONGEST_SESSION = 60
"""Seconds that ZooKeeper grants at most."""
REDIS = ("busy-reply-threshold 20", "key-load-delay 0", "loading-process-events-interval-bytes 1024")
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
    "join": re.compile(rb"\*6\r\n:"),
    "renew": re.compile(rb"\*\d+\r\n:\d+\r\n(?:\*5\r\n|[*$]-1\r\n)"),
    "leave": re.compile(rb"\*2\r\n:\d+\r\n:[01]\r\n"),
}


def _redis_asks(name: str, verb: str) -> Match:
    key, sha = f"dibs:{name}|line".encode(), _SCRIPTS[verb].sha.encode()
    return lambda message: key in message and sha in message


def _redis_stands(server: Server, name: str) -> bool:
    """Who stands first; tombstones stay until they expire."""
    return server.ask("HEXISTS", f"dibs:{name}|line", "first") == "1"


def _redis_ends(server: Server) -> int:
    return sum(redis_lone.end_connections(server, kind) for kind in ("normal", "waiting"))


# PostgreSQL: a message is what came in one piece, as libpq sends it.

_POSTGRESQL_REPLIES = {
    "join": re.compile(rb"\d{16} \d+ s \d+ [01] "),
    "renew": re.compile(rb"\d{16} (?:-|\d+:[01]:)"),
    "leave": re.compile(rb"\d{16} \d+ [01]C"),
}


def _postgresql_asks(name: str, verb: str) -> Match:
    return lambda message: f"dibs:{name}".encode() in message and f"dibs_1_{verb}".encode() in message


def _postgresql_stands(server: Server, name: str) -> bool:
    """Claims that have not expired: the next one on the name removes the others."""
    now = "date_part('epoch', clock_timestamp()) * 1000000"
    return server.ask(f"SELECT 1 FROM dibs.dibs_claims WHERE name = 'dibs:{name}' AND until > {now}") != ""


def _postgresql_ends(server: Server) -> int:
    return sum(postgresql_lone.end_connections(server, kind) for kind in ("normal", "waiting"))


# MySQL: the reply is the first packet down behind the request; nothing else is under way then.


def _mysql_asks(name: str, verb: str) -> Match:
    return lambda message: f"dibs_1_{verb}".encode() in message


def _mysql_session_asks(name: str, verb: str) -> Match:
    text = {"join": b"dibs_1_take", "update": b"UPDATE dibs_held", "leave": b"RELEASE_LOCK"}[verb]
    return lambda message: text in message


def _mysql_stands(server: Server, name: str) -> bool:
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    return server.ask(f"SELECT 1 FROM dibs_claims WHERE name = 'dibs:{name}' AND until > {now}") != ""


def _mysql_ends(server: Server) -> int:
    return sum(mariadb_lone.end_connections(server, kind) for kind in ("normal", "waiting"))


# ZooKeeper: a request has its kind and its number, and the reply bears the number.

_ZOOKEEPER_KINDS = {"join": (1, 15), "leave": (2, 14)}
"""create, create2; delete, multi."""


def _zookeeper_asks(name: str, verb: str) -> Match:
    def fits(message: bytes) -> bool:
        number, kind = (int.from_bytes(message[at : at + 4], "big", signed=True) for at in (4, 8))
        about = f"/{name}/".encode() in message and b"_c_" in message
        return number > 0 and kind in _ZOOKEEPER_KINDS[verb] and about

    return fits


def _zookeeper_answers(proxy: Proxy, name: str, verb: str) -> First:
    numbers: list[bytes] = []
    asked = First(_zookeeper_asks(name, verb))

    def note(message: bytes) -> bool:
        if asked(message):
            numbers.append(message[4:8])
        return False

    proxy.add(Cut(at_message(match=note)), UP)  # only looks: it never strikes
    return First(lambda message: message[4:8] in numbers)


def _behind(asks: Callable[[str, str], Match], shapes: dict[str, re.Pattern[bytes]]) -> Any:
    """The reply is the first message of that shape that comes down behind the request."""

    def answers(proxy: Proxy, name: str, verb: str) -> First:
        asked, shape = seen(proxy, asks(name, verb)), shapes.get(verb, re.compile(b""))
        return First(lambda message: asked.struck and shape.search(message) is not None)

    return answers


def _zookeeper_stands(server: Server, name: str) -> bool:
    """Any session at all: closed clients have none."""
    return bool(standing(server.ask("dump", within=5)))


def _nobody(server: Server, name: str) -> bool:
    """Sessions leave no rows behind that count."""
    return False


def _no_connections(server: Server) -> int:
    raise NotImplementedError("ZooKeeper's operator cannot end connections")


_postgresql = Store(
    "postgresql", "postgresql", lambda: PostgreSQL("max_connections=40"), _postgresql_asks,
    _behind(_postgresql_asks, _POSTGRESQL_REPLIES), _postgresql_ends, _postgresql_stands,
)  # fmt: skip
_mysql = Store(
    "mysql", "mariadb", MariaDB, _mysql_asks, _behind(_mysql_asks, {}), _mysql_ends, _mysql_stands,
    splitter=splitters.mysql,
)  # fmt: skip
STORES = {
    store.name: store
    for store in (
        Store(
            "redis", "redis", lambda: Redis(*REDIS, persist="always"), _redis_asks,
            _behind(_redis_asks, _REDIS_REPLIES), _redis_ends, _redis_stands, splitter=splitters.resp,
        ),
        _postgresql,
        _mysql,
        Store(
            "zookeeper", "zookeeper",
            lambda: ZooKeeper(f"maxSessionTimeout={LONGEST_SESSION * 1000}", tick_ms=300),
            _zookeeper_asks, _zookeeper_answers, _no_connections,
            _zookeeper_stands, splitter=splitters.zookeeper, lease=18.0,
        ),
        Store(
            "postgresql-session", "postgresql", _postgresql.kind, _postgresql_asks, _postgresql.answers,
            _postgresql_ends, _nobody, query="?mode=session", lasts=False,
        ),
        Store(
            "mysql-session", "mariadb", _mysql.kind, _mysql_session_asks, _behind(_mysql_session_asks, {}),
            _mysql_ends, _nobody, splitter=splitters.mysql, query="?mode=session", lasts=False,
        ),
    )
}  # fmt: skip
LEASED = ("redis", "postgresql", "mysql")
SURVIVING = (*LEASED, "zookeeper")
SESSION = ("postgresql-session", "mysql-session")
SERVERS = (*SURVIVING, *SESSION)


def row(name: str, *more: Any, marks: Any = ()) -> Any:
    """A parameter set that begins with that store."""
    group = pytest.mark.xdist_group(f"faults-{STORES[name].program}")
    return pytest.param(STORES[name], *more, id="-".join([name, *map(_word, more)]), marks=[group, *marks])


def on(stores: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("store", [row(name) for name in stores])


def _word(value: Any) -> str:
    return str(getattr(value, "__name__", value))
