"""Findings about the store, from this session and a second connection.

The doctor makes and deletes a node, measures the round trip to the leader, and reads the ensemble's list of servers.
`srvr` gives the version; servers may be configured not to answer it, and then nothing is said about the version.
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
"""A round trip to the leader that takes more than this part of the timeout is a danger."""
_MEMBER = re.compile(rb"^server\.\d+=", re.MULTILINE)
_LONGEST = 1000
"""Bytes of the reply that are read."""


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
    about = [Finding("about", f"ZooKeeper {printable(version)}")] if version else []
    timeout = executor.client.session.timeout
    return [*about, *_promises(timeout, refused), *_warnings(address, asked, timeout, members, took), *refused]


def version_of(address: Address) -> str:
    """The version of the first server; "" if it does not say. Blocks."""
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


def _promises(timeout: float, refused: list[Finding]) -> Iterator[Finding]:
    if not refused:
        yield Finding(
            "promise", "at most one valid holder, whichever servers fail, while a majority of them keeps its data"
        )
        yield Finding("promise", "first come, first served, across machines, and with Curator's programs")
    yield Finding("promise", "tokens rise strictly for the life of the ensemble")
    yield Finding("promise", f"the lock of a holder that dies is free within about {duration(timeout)}")
    yield Finding("promise", "changes of wall clocks do no harm: no session depends on them")


def _warnings(address: Address, asked: float, timeout: float, members: int, took: float) -> Iterator[Finding]:
    """`took`: seconds of a round trip to the leader."""
    if abs(asked - timeout) > 0.001:
        yield Finding(
            "note", f"sessions last {duration(timeout)}, though {duration(asked)} was requested: the servers "
            f"allow 2 to 20 ticks", "use connect(lease=) within that range, or set minSessionTimeout and "
            "maxSessionTimeout on the servers",
        )  # fmt: skip
    if members <= 1:
        yield Finding(
            "note", "one server: while it is down, nothing is granted, and only its disk has the data",
            "use three or five servers",
        )  # fmt: skip
    elif len(address.servers) < members:
        yield Finding(
            "note", f"the URL names {len(address.servers)} of {members} servers: while those are down, the others are "
            "not used", "give all of them",
        )  # fmt: skip
    if address.login is not None and not address.secure:
        yield Finding(
            "danger", "the password is sent in clear text, or as a hash that can be guessed", "use zookeepers:// (TLS)"
        )
    if address.acl == "open":
        yield Finding(
            "note", "anyone who can reach the servers may remove the nodes of dibs, and with them every lock",
            "use zookeeper://user:password@..., so that only this user may",
        )  # fmt: skip
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
