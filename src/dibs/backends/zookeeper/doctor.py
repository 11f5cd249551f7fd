"""Findings about the store: negotiated, tried and measured over this session and a second connection.

A node is made and removed, the way to the leader is timed, the ensemble's own list of its servers is read. `srvr`,
which servers answer unless they were told not to, gives the version; where it does not, nothing is said of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from time import monotonic

from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.paths import levels
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor, node_of
from dibs.backends.zookeeper.wire.transport import Transport
from dibs.core.deadline import LEAST_PATIENCE
from dibs.errors import StoreError
from dibs.info import Finding, duration, printable

SLOW = 10
"""A way to the leader that takes more than this part of the time-out costs locks in the next bad minute."""
_MEMBER = re.compile(rb"^server\.\d+=", re.MULTILINE)
_LONGEST = 1000
"""Bytes of the first line of an answer."""


async def examine(
    executor: ZookeeperExecutor, address: Address, asked: float, version: str, now: Callable[[], float], until: float
) -> list[Finding]:
    await executor.ready(until)
    begun = now()
    await executor.ask([codec.sync(address.chroot or "/")], until)
    took = now() - begun
    (config,) = await executor.ask([codec.get("/zookeeper/config")], until)
    members = len(_MEMBER.findall(node.data)) if config.error == codec.OK and (node := node_of(config)) else 0
    refused = await _try_a_node(executor, address, until)
    timeout = executor.client.session.timeout
    return [
        *([Finding("about", f"ZooKeeper {printable(version)}")] if version else []),
        *_promises(timeout, sound=not refused),
        *_timeout(asked, timeout),
        *_servers(members, len(address.servers)),
        *_openness(address),
        *_way(took, timeout),
        *refused,
    ]


def version_of(address: Address) -> str:
    """As the first server that says so has it; may block."""
    host, port = address.servers[0]
    try:
        transport = Transport(host, port, address.tls, LEAST_PATIENCE)
    except StoreError:
        return ""
    said = b""
    try:
        transport.send(b"srvr")
        until = monotonic() + LEAST_PATIENCE
        while (
            b"\n" not in said and len(said) < _LONGEST and (left := until - monotonic()) > 0 and transport.ready(left)
        ):
            said += transport.take_in(transport.read())
    except StoreError:
        pass
    finally:
        transport.close()
    found = re.match(rb"Zookeeper version: ([\w.]{1,40})", said)
    return "" if found is None else found[1].decode()


def _promises(timeout: float, *, sound: bool) -> Iterator[Finding]:
    if sound:
        yield Finding(
            "promise", "at most one valid holder, whichever servers fail, while a majority of them keeps its data"
        )
        yield Finding("promise", "first come, first served, across machines, and with Curator's programs")
    yield Finding("promise", "tokens rise strictly for the life of the ensemble")
    yield Finding("promise", f"the lock of a holder that dies is free within about {duration(timeout)}")
    yield Finding("promise", "changes of wall clocks do no harm: no session depends on them")


def _timeout(asked: float, timeout: float) -> Iterator[Finding]:
    if abs(asked - timeout) > 0.001:
        yield Finding(
            "note", f"sessions last {duration(timeout)}, though {duration(asked)} was requested: the servers "
            f"allow 2 to 20 ticks", "use connect(lease=) within that range, or set minSessionTimeout and "
            "maxSessionTimeout on the servers",
        )  # fmt: skip


def _servers(members: int, named: int) -> Iterator[Finding]:
    if members <= 1:
        yield Finding(
            "note",
            "one server: while it is down, nothing is granted, and only its disk has the data",
            "use three or five servers",
        )
    elif named < members:
        yield Finding(
            "note",
            f"the URL names {named} of {members} servers: while those are down, the others are not used",
            "give all of them",
        )


def _openness(address: Address) -> Iterator[Finding]:
    if address.login is not None and not address.secure:
        yield Finding(
            "danger",
            "the password is sent in clear text, or as a hash that can be guessed",
            "use zookeepers:// (TLS)",
        )
    if address.acl == "open":
        yield Finding(
            "note", "anyone who can reach the servers may remove the nodes of dibs, and with them every lock",
            "use zookeeper://user:password@..., so that only this user may",
        )  # fmt: skip


def _way(took: float, timeout: float) -> Iterator[Finding]:
    if took > timeout / SLOW:
        yield Finding(
            "danger", f"a round trip to the leader took {duration(took)} of a session of {duration(timeout)}: "
            f"if it gets slower, locks are lost", "use a longer lease=, or servers that are nearer or less busy",
        )  # fmt: skip


async def _try_a_node(executor: ZookeeperExecutor, address: Address, until: float) -> list[Finding]:
    path = f"{address.chroot}/%doctor"
    tried = [codec.create(path, b"", executor.acl, codec.EPHEMERAL), codec.delete(path)]
    if address.chroot:
        tried = [codec.create(level, b"", executor.acl, codec.CONTAINER) for level in levels(address.chroot)] + tried
    call = (await executor.ask(tried, until))[-2]
    if call.error in (codec.OK, codec.NODE_EXISTS):
        return []
    said = codec.ERRORS.get(call.error, f"error {call.error}")
    return [
        Finding(
            "danger", f"no node can be created below {address.chroot or '/'}: {said}",
            "create that path, with the rights to read, create, write and delete",
        )
    ]  # fmt: skip
