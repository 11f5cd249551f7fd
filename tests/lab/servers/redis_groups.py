"""Groups of Redis servers: replicas of a primary, watched by sentinels or not; a cluster; independent ones.

    with replicated(sentinels=3) as group: group.primary, group.replicas, group.sentinels
    with cluster() as nodes: ...          # primaries first, then a replica of each
    with independent(5) as nodes: ...

Each is yielded once replicas are in step, sentinels know each other and every slot is served. `through` as in redis.py.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lab.servers import ports
from lab.servers.redis import Redis, Sentinel, Through, directly
from lab.servers.supervisor import Server, together, until

MAIN = "main"
SLOTS = 16384
_STANDSTILL_MS = 600_000
"""A sentinel that stood still for so long takes no part in a fail-over for the next 30 s. It would after 2 s."""


@dataclass
class Group:
    primary: Server
    replicas: tuple[Server, ...]
    sentinels: tuple[Server, ...]


@contextlib.contextmanager
def replicated(
    *lines: str,
    replicas: int = 2,
    sentinels: int = 0,
    down_after_ms: int = 500,
    password: str | None = None,
    through: Through = directly,
    link: Through | None = None,
    **options: Any,
) -> Iterator[Group]:
    """`link` is the way of the replicas to their first primary, if not the clients' way. `options` as of `Redis`; its
    TLS is not for sentinels."""
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(Server(Redis(*lines, password=password, through=through, **options)))
        source = f"replicaof {ports.HOST} {(link or through)(primary.port)}"
        copies = (Redis(*lines, source, password=password, through=through, **options) for _ in range(replicas))
        followers = stack.enter_context(together(*copies))
        until(lambda: in_step(primary, followers), what="replicas in step")
        watching = functools.partial(Sentinel, through(primary.port), quorum=sentinels // 2 + 1, through=through)
        sentries = (watching(down_after_ms=down_after_ms, password=password) for _ in range(sentinels))
        watchers = stack.enter_context(together(*sentries))
        until(lambda: all(_aware(watcher, replicas, sentinels) for watcher in watchers), what="sentinels aware")
        for watcher in watchers:
            watcher.ask("SENTINEL", "DEBUG", "tilt-trigger", str(_STANDSTILL_MS))
        yield Group(primary, followers, watchers)


@contextlib.contextmanager
def cluster(
    *lines: str, primaries: int = 3, node_timeout_ms: int = 2000, through: Through = directly, **options: Any
) -> Iterator[tuple[Server, ...]]:
    """So many primaries, and as many replicas. `options` as of `Redis`."""
    kinds = [
        Redis(*lines, cluster_timeout_ms=node_timeout_ms, through=through, **options) for _ in range(2 * primaries)
    ]
    with together(*kinds) as nodes:
        for epoch, node in enumerate(nodes, 1):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(epoch))  # nodes that all claimed to be first would quarrel
        for kind in kinds[1:]:
            port, bus = map(str, kind.advertised())
            nodes[0].ask("CLUSTER", "MEET", ports.HOST, port, bus)
        _share_slots(nodes[:primaries])
        until(lambda: all(_fact(node, "cluster_known_nodes") == str(len(nodes)) for node in nodes), what="met")
        for primary, replica in zip(nodes[:primaries], nodes[primaries:], strict=True):
            order = ("CLUSTER", "REPLICATE", primary.ask("CLUSTER", "MYID"))
            until(functools.partial(replica.ask, *order), what="a replica")
        pairs = list(zip(nodes[:primaries], nodes[primaries:], strict=True))
        until(lambda: all(in_step(primary, (replica,)) for primary, replica in pairs), what="replicas in step")
        for primary in nodes[:primaries]:
            primary.ask("FLUSHALL")  # a replica is not known before its first write, else a ping after 10 s
        until(lambda: all(_whole(node, len(nodes)) for node in nodes), what="every slot served, every replica known")
        until(lambda: all(in_step(primary, (replica,)) for primary, replica in pairs), what="replicas in step")
        yield nodes


@contextlib.contextmanager
def independent(count: int, *lines: str, **options: Any) -> Iterator[tuple[Server, ...]]:
    with together(*(Redis(*lines, **options) for _ in range(count))) as nodes:
        yield nodes


def in_step(primary: Server, replicas: tuple[Server, ...]) -> bool:
    """Each replica has acknowledged all that the primary had written when it was asked."""
    said = primary.ask("INFO", "replication")
    written = re.search(r"master_repl_offset:(\d+)", said)
    acknowledged = re.findall(r"state=online,offset=(\d+)", said)
    online = sum(written is not None and int(offset) >= int(written[1]) for offset in acknowledged)
    return online >= len(replicas) and all(
        "master_link_status:up" in node.ask("INFO", "replication") for node in replicas
    )


def primary_seen_by(sentinel: Server) -> int:
    """The port that it sends clients to."""
    return int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MAIN).split()[1])


def is_failing_over(sentinel: Server) -> bool:
    """It is not done: one whose chosen primary dies now waits for that one for ever."""
    return "failover_in_progress" in _watched(sentinel)["flags"]


def role(node: Server) -> str:
    """master, slave or sentinel: Redis's own words."""
    return node.ask("ROLE", within=2).split()[0]


def _watched(sentinel: Server) -> dict[str, str]:
    words = sentinel.ask("SENTINEL", "MASTER", MAIN).split("\n")
    return dict(zip(words[::2], words[1::2], strict=True))


def _aware(sentinel: Server, replicas: int, sentinels: int) -> bool:
    facts = _watched(sentinel)
    return (facts["num-slaves"], facts["num-other-sentinels"]) == (str(replicas), str(sentinels - 1))


def _fact(node: Server, name: str) -> str:
    facts = dict(line.split(":", 1) for line in node.ask("CLUSTER", "INFO").splitlines() if ":" in line)
    return facts[name].strip()


def _whole(node: Server, nodes: int) -> bool:
    """Clients that ask it learn of every node: of a replica only once that has something of its primary's."""
    return _fact(node, "cluster_state") == "ok" and node.ask("CLUSTER", "SLOTS").split().count(ports.HOST) == nodes


def _share_slots(primaries: tuple[Server, ...]) -> None:
    bounds = [SLOTS * number // len(primaries) for number in range(len(primaries) + 1)]
    for primary, first, end in zip(primaries, bounds, bounds[1:], strict=False):
        primary.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
