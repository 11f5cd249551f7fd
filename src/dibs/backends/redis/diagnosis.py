"""The findings of `doctor`: promises, notes and dangers, with fixes. No I/O: doctor.py collects the facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS

from dibs.backends.redis.address import Address, Endpoint
from dibs.backends.redis.discovery import named
from dibs.core.deadline import margin
from dibs.info import Finding, duration, printable

SLOW = 10
"""A round trip longer than this fraction of a lease (one tenth) is a danger: locks are lost as soon as it grows."""
NEARLY = 0.9
"""Share of maxmemory from which the memory counts as nearly full."""
SILENT = 5
"""Seconds after which a replica counts as behind: it reports once a second."""
ADRIFT = 1.0
"""Seconds that a server's wall clock may differ from this machine's without a note."""
NOEVICTION = "noeviction"
OLDEST = 5
"""Major version of Redis. In older ones, a script that has read the clock may not write."""
CHECK_LOG = "check the server's log"


class Clock(NamedTuple):
    """How far a server's wall clock is ahead of our boot clock, at least and at most; and the round trip."""

    least: float
    most: float
    took: float


class Replica(NamedTuple):
    """A replica, as its primary reports it."""

    endpoint: Endpoint
    is_online: bool
    silence: int


class Primary(NamedTuple):
    """A primary that was examined."""

    endpoint: Endpoint
    facts: dict[str, str]
    """INFO; empty if it was refused."""
    settings: dict[str, str]
    """CONFIG, without the settings that were refused."""
    clock: Clock
    replicas: list[Replica]


def facts(reply: object) -> dict[str, str]:
    """Parse the lines of an INFO; empty if it was refused.

    >>> facts(b"# Server\\r\\nredis_version:7.0.15\\r\\n")
    {'redis_version': '7.0.15'}
    """
    lines = reply.decode(errors="replace").splitlines() if isinstance(reply, bytes) else []
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def read_replica(name: str, value: str) -> Replica | None:
    """Parse a line of an INFO, if it is about a replica.

    >>> read_replica("slave0", "ip=10.0.0.2,port=6379,state=online,offset=42,lag=1")
    Replica(endpoint=('10.0.0.2', 6379), is_online=True, silence=1)
    """
    reply = dict(part.partition("=")[::2] for part in value.split(","))
    if not (name.startswith("slave") and name[5:].isdigit() and reply.get("port", "").isdigit()):
        return None
    return Replica((reply.get("ip", ""), int(reply["port"])), reply.get("state") == "online", _whole(reply, "lag"))


def versions(primaries: list[Primary]) -> Iterator[Finding]:
    versions = sorted({version for node in primaries if (version := _version(node.facts))})
    if versions:
        yield Finding("about", " and ".join(versions))
    for version in versions:
        major = version.removeprefix("Redis ").partition(".")[0]
        if major.isdigit() and int(major) < OLDEST:
            yield Finding("danger", f"{version} is too old: no lock can be taken", f"use Redis {OLDEST} or later")


def promises(
    primaries: list[Primary], address: Address, lease: float, *, sound: bool, heard: bool, ordered: bool
) -> Iterator[Finding]:
    is_dibs = address.layout == "dibs"
    if sound:
        yield Finding(
            "promise", "at most one valid holder, while the servers keep what they acknowledged and nobody "
            "steps their clocks",
        )  # fmt: skip
    if sound and is_dibs:
        yield Finding("promise", "first come, first served, across machines")
    if ordered and is_dibs:
        yield Finding("promise", "tokens rise strictly, also after a loss of data, by the server's clock")
    if all(_keeps_all(node) for node in primaries):
        yield Finding("promise", "what was acknowledged survives a crash of the server")
    if address.replicas:
        yield Finding("promise", f"a grant or renewal counts only once {address.replicas} replicas have it")
    if heard:
        yield Finding("promise", "waiters are told by a message: a test message arrived")
    yield Finding("promise", f"the lock of a holder that dies is free within {duration(lease)}, or its own lease")


def shared(address: Address) -> Iterator[Finding]:
    """Notes on the promises that a layout shared with Java lacks."""
    if address.layout == "redisson":
        yield Finding(
            "note", "the layout is that of Redisson: only locks with fenced=True have a fencing token, which falls "
            "after a loss of data; only locks with fair=True are first come, first served",
        )  # fmt: skip
        yield Finding(
            "note", "permits of a semaphore have no lease: those of a holder that dies stay taken", "use renew=False, "
            "which gives each permit a lease",
        )  # fmt: skip


def servers(primaries: list[Primary], address: Address) -> list[Finding]:
    """Findings about each server. One that applies to all is reported once, others with their servers."""
    found: dict[Finding, list[str]] = {}
    for node in primaries:
        for finding in _of(node, address):
            found.setdefault(finding, []).append(named(node.endpoint))
    return [
        finding if len(names) == len(primaries) else finding._replace(what=f"{', '.join(names)}: {finding.what}")
        for finding, names in found.items()
    ]


def may_evict(primaries: list[Primary]) -> bool:
    """Whether a server may evict keys as it is set up now."""
    return any(_policy(node.facts) != NOEVICTION and _whole(node.facts, "maxmemory") for node in primaries)


def _of(node: Primary, address: Address) -> Iterator[Finding]:
    if not node.facts:
        yield Finding("note", "INFO is refused: memory, disk and replicas were not checked", "allow it: +info")
        return
    if node.facts.get("role") == "slave":
        yield Finding(
            "danger", "this is a replica, which grants no locks", "give its primary, or use redis+sentinel://"
        )
    yield from _memory(node.facts)
    yield from _disk(node)
    yield from _replication(node, address)


def _memory(facts: dict[str, str]) -> Iterator[Finding]:
    policy, most = _policy(facts), _whole(facts, "maxmemory")
    if policy != NOEVICTION:
        bites = "when maxmemory is reached" if most else "once maxmemory is set, which it is not now"
        already = " (it has evicted keys before)" if _whole(facts, "evicted_keys") else ""
        yield Finding(
            "danger", f"maxmemory-policy is {printable(policy)}: {bites}, keys are evicted{already}, locks among them",
            f"set maxmemory-policy {NOEVICTION}; if other programs need eviction, use a separate server for locks",
        )  # fmt: skip
    elif most and _whole(facts, "used_memory") > most * NEARLY:
        yield Finding(
            "danger", "its memory is nearly full: a full server grants no locks",
            "raise maxmemory, or find what fills it",
        )  # fmt: skip


def _disk(node: Primary) -> Iterator[Finding]:
    if "err" in (node.facts.get("aof_last_write_status"), node.facts.get("rdb_last_bgsave_status")):
        yield Finding(
            "danger", "the last save to disk failed, and the server may refuse writes", "check its disk and log"
        )
    if node.facts.get("aof_enabled") != "1":
        kept = "nothing is saved" if node.settings.get("save") == "" else "at best an old snapshot is saved"
        yield Finding(
            "danger", f"no append-only file, {kept}: when the server restarts, all locks are lost, and others "
            f"get in beside the holders", "set appendonly yes and appendfsync always, or use a fence",
        )  # fmt: skip
    elif "appendfsync" not in node.settings:
        yield Finding(
            "note", "CONFIG is refused, so appendfsync could not be checked: unless it is always, a crash may "
            "lose the last second of grants", "use a fence for what must not happen twice",
        )  # fmt: skip
    elif not _keeps_all(node):
        yield Finding(
            "note", f"appendfsync is {printable(node.settings['appendfsync'])}: a crash may lose the last grants, of "
            "a second or more, and then two hold", "use appendfsync always, or a fence",
        )  # fmt: skip


def _replication(node: Primary, address: Address) -> Iterator[Finding]:
    wanted, online = address.replicas, sum(replica.is_online for replica in node.replicas)
    if online < wanted:
        yield Finding(
            "danger", f"replicas={wanted} is asked for and {online} are online: nothing is granted",
            "bring the replicas back, or lower replicas=",
        )  # fmt: skip
    for replica in node.replicas:
        if not replica.is_online or replica.silence >= SILENT:
            what = f"the replica {named(replica.endpoint)} is behind: if it takes over, it lacks the latest grants"
            yield Finding("note", what, "check the connection to its primary")
    # With one replica, a fail-over leaves none to confirm renewals: replicas=1 would cost every lock.
    first = "" if len(node.replicas) > 1 else "add a second replica, then "
    if node.replicas and not wanted and address.topology == "sentinel" and address.layout == "dibs":
        yield Finding(
            "note", "a replica that takes over may lack the last grants: their holders lose them before "
            "anything new is granted", f"{first}use replicas=1, which makes that rare",
        )  # fmt: skip
    elif node.replicas and not wanted:
        yield Finding(
            "note", "a replica that takes over may lack the last grants, and then two hold",
            f"{first}use replicas=1, which makes that rare; a fence makes it harmless",
        )  # fmt: skip
    if node.replicas and address.topology == "single" and "min_slaves_good_slaves" not in node.facts:
        yield Finding(
            "note", "a primary that is cut off from its replicas keeps granting while one of them takes over",
            "set min-replicas-to-write 1, min-replicas-max-lag 10",
        )  # fmt: skip
    if not node.replicas and address.topology != "single":
        yield Finding("note", "no replica: while the server is down, it grants nothing", "add a replica")


def cluster(reply: dict[str, str], address: Address) -> Iterator[Finding]:
    """Findings about the reply to CLUSTER INFO."""
    if not reply:
        yield Finding("note", "CLUSTER INFO is refused: whether all slots are served was not checked", "+cluster|info")
        return
    served, state = _whole(reply, "cluster_slots_ok"), reply.get("cluster_state", "unknown")
    if served < SLOTS or state != "ok":
        yield Finding(
            "danger", f"{served} of {SLOTS} slots are served, and the state of the cluster is "
            f"{printable(state)}: names in the other slots cannot be locked", "check CLUSTER NODES, and bring "
            "back the nodes that are down",
        )  # fmt: skip
    if address.topology != "cluster" and _whole(reply, "cluster_known_nodes") > 1:
        yield Finding(
            "danger", "this is one node of a cluster: most names are on other nodes, and a fail-over is not followed",
            "use redis+cluster://",
        )  # fmt: skip


def clocks_apart(clocks: dict[Endpoint, Clock], lease: float) -> Iterator[Finding]:
    """Clocks that differ too much, whatever the round trips took."""
    ahead = max(clocks, key=lambda endpoint: clocks[endpoint].least)
    behind = min(clocks, key=lambda endpoint: clocks[endpoint].most)
    by = clocks[ahead].least - clocks[behind].most
    if by > margin(lease):
        yield Finding(
            "danger", f"the clock of {named(ahead)} is {duration(round(by))} ahead of that of {named(behind)}: if the "
            "first takes over from the second, leases end early and two hold; in the other direction, tokens "
            "may fall for that long", "synchronise the clocks of all servers (NTP, chrony)",
        )  # fmt: skip


def wrong_clocks(primaries: list[Primary], ours: float) -> Iterator[Finding]:
    """Clocks that are wrong: when such a clock is corrected, it jumps. `ours`: our wall clock minus our boot clock."""
    for node in primaries:
        by = max(node.clock.least - ours, ours - node.clock.most)
        if by > ADRIFT:
            way = "ahead of" if node.clock.least > ours else "behind"
            yield Finding(
                "note", f"the wall clock of {named(node.endpoint)} is {duration(round(by))} {way} this machine's: "
                f"if it is stepped forward, leases end early and two hold", "slew the clock, do not step it",
            )  # fmt: skip


def slow_round_trip(primaries: list[Primary], lease: float) -> Iterator[Finding]:
    took = max(node.clock.took for node in primaries)
    if took > lease / SLOW:
        yield Finding(
            "danger", f"a round trip took {duration(took)} of a lease of {duration(lease)}: if it gets slower, "
            f"holders lose their locks", "use a longer lease=, or a server that is nearer or less busy",
        )  # fmt: skip


def availability(address: Address, primaries: list[Primary]) -> Iterator[Finding]:
    if address.topology != "single":
        if len(address.endpoints) == 1:
            which = "sentinel" if address.topology == "sentinel" else "node"
            yield Finding(
                "note", f"the URL names one {which}: while it is down, new clients find nothing", "give several"
            )
    elif any(node.replicas for node in primaries):
        yield Finding(
            "note", "this URL does not follow a fail-over", "use redis+sentinel:// if sentinels watch the server"
        )
    else:
        yield Finding(
            "note",
            "one server: while it is down, nothing is granted",
            "use replicas with sentinels, a cluster, or a quorum",
        )


def encryption(address: Address) -> Iterator[Finding]:
    if not address.shown.startswith(("rediss", "unix")) and not all(map(_is_here, address.endpoints)):
        yield Finding(
            "note", "the connection is not encrypted, and passwords are sent in clear text", "use rediss:// (TLS)"
        )


def _is_here(endpoint: Endpoint) -> bool:
    return isinstance(endpoint, str) or endpoint[0] in ("localhost", "::1") or endpoint[0].startswith("127.")


def _version(facts: dict[str, str]) -> str:
    """The version of the server. Valkey reports a compatible Redis version, too."""
    for name, field in (("Valkey", "valkey_version"), ("Redis", "redis_version")):
        if facts.get(field):
            return f"{name} {printable(facts[field])}"
    return ""


def _policy(facts: dict[str, str]) -> str:
    return facts.get("maxmemory_policy", NOEVICTION)


def _keeps_all(node: Primary) -> bool:
    return node.facts.get("aof_enabled") == "1" and node.settings.get("appendfsync") == "always"


def _whole(facts: dict[str, str], name: str) -> int:
    value = facts.get(name, "")
    return int(value) if value.isdigit() else 0
