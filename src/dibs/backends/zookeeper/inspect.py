"""Inspecting queues, and revoking or removing one holder. Queues are read from the nodes of all clients.

A node that is deleted during the read is left out. The data of other clients' nodes is shown and has no other effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dibs.backends.zookeeper.paths import directory_of, is_queue, name_of, path_of
from dibs.backends.zookeeper.queue_rule import (  # fmt: skip
    LEASES_NODE,
    LOCKS_NODE,
    REVOKE,
    WRITE,
    Contender,
    in_order,
    leaf_of,
    owner_of,
    participant,
    ticket_of,
)
from dibs.backends.zookeeper.semaphore_queue import size_of
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Event, Node
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor, checked, children_of, node_of
from dibs.backends.zookeeper.wire.session import CHILDREN, DATA, EXISTENCE
from dibs.core.queue import LOOK, ClientIdentity
from dibs.core.rule import fits
from dibs.info import LockInfo, Participant

PAGE = 1000
"""Claims on one page; a queue is never split."""
_AT_ONCE = 200
"""Queues that are read at a time."""


class _Claimed(NamedTuple):
    """One claim: what is shown of it, and its nodes."""

    participant: Participant
    nodes: tuple[str, ...]
    weight: int


class Snapshot(NamedTuple):
    info: LockInfo
    holders: tuple[_Claimed, ...] = ()


async def read(executor: ZookeeperExecutor, chroot: str, name: str, until: float) -> Snapshot:
    return (await _read(executor, [(name, chroot + path_of(name))], until))[0]


async def page(executor: ZookeeperExecutor, chroot: str, prefix: str, after: str, until: float) -> list[LockInfo]:
    names = await _names(executor, chroot, prefix, until)
    wanted = sorted(name for name in names if name.startswith(prefix) and name > after)
    found: list[LockInfo] = []
    claims = 0
    for n in range(0, len(wanted), _AT_ONCE):
        part = [(name, chroot + path_of(name)) for name in wanted[n : n + _AT_ONCE]]
        for info, _ in await _read(executor, part, until):
            size = len(info.holders) + len(info.waiters)
            if size:
                found.append(info)
                claims += size
        if claims >= PAGE:
            break
    return found


async def evict(executor: ZookeeperExecutor, chroot: str, name: str, token: int, until: float) -> bool:
    """Delete the nodes of a holder. Waiters are never evicted."""
    holder = await _holder(executor, chroot, name, token, until)
    if holder is None:
        return False
    calls = await executor.ask([codec.delete(path) for path in holder.nodes], until)
    return any(checked(call, codec.NO_NODE) == codec.OK for call in calls)


async def revoke(executor: ZookeeperExecutor, chroot: str, name: str, token: int, until: float) -> bool:
    holder = await _holder(executor, chroot, name, token, until)
    if holder is None:
        return False
    (call,) = await executor.ask([codec.put(holder.nodes[0], REVOKE, -1)], until)
    return checked(call, codec.NO_NODE) == codec.OK


async def await_change(
    executor: ZookeeperExecutor, chroot: str, me: ClientIdentity, name: str, seen: int, key: bytes, until: float
) -> None:
    """Watch the first node or, if there is none, the directory."""
    directory = chroot + path_of(name)

    def told(_: Event) -> None:
        executor.client.tell(me.inbox, key, LOOK.value)

    (listed,) = await executor.ask([codec.children(directory)], until)
    if checked(listed, codec.NO_NODE):
        watch, asking = (EXISTENCE, directory, told), codec.exists(directory, watch=True)
    else:
        queue, _ = in_order(children_of(listed))
        if queue:
            path = f"{directory}/{queue[0].name}"
            watch, asking = (DATA, path, told), codec.get(path, watch=True)
        else:
            watch, asking = (CHILDREN, directory, told), codec.children(directory, watch=True)
    try:
        (call,) = await executor.ask([asking], until, watch)
        if isinstance(call.value, Node):
            there = ticket_of(call.value)
        elif isinstance(call.value, list) and not call.value:
            there = 0
        else:
            there = 0 if call.error == codec.NO_NODE and watch[0] == EXISTENCE else -1
        if there == seen:
            await me.inbox.wait(key, until)
    finally:
        executor.client.send((), drop=[watch])


async def identity(executor: ZookeeperExecutor, chroot: str, until: float) -> str:
    """The identity of the ensemble: of a node that the first caller makes."""
    path = f"{chroot}/%dibs"
    asking = [codec.create(path, b"", executor.acl, codec.PERSISTENT), codec.exists(path)]
    calls = await executor.ask_in([chroot] if chroot else [], asking, until)
    checked(calls[0], codec.NODE_EXISTS)
    checked(calls[1])
    stat = calls[1].value
    assert isinstance(stat, codec.Stat)
    return f"zookeeper:{stat.czxid:x}-{stat.ctime:x}"


async def _holder(executor: ZookeeperExecutor, chroot: str, name: str, token: int, until: float) -> _Claimed | None:
    snapshot = await read(executor, chroot, name, until)
    return next((one for one in snapshot.holders if one.participant.token == token), None)


async def _names(executor: ZookeeperExecutor, chroot: str, prefix: str, until: float) -> set[str]:
    """The names of possible queues: one level below the directory of the prefix, or two below the root. On the second
    level, and if the prefix is a path, the name is the path, as in other programs."""
    directory = directory_of(prefix)
    here = chroot + directory
    calls = await executor.ask([codec.sync(here or "/"), codec.children(here or "/")], until)
    paths = [path for child in children_of(calls[1]) if (path := f"{directory}/{child}") != "/zookeeper"]
    named = {path if prefix.startswith("/") and is_queue(path) else name_of(path) for path in paths}
    if not prefix and paths:
        listed = await executor.ask([codec.children(chroot + path) for path in paths], until)
        below = [
            f"{path}/{child}"
            for path, call in zip(paths, listed, strict=True)
            if call.error == codec.OK
            for child in in_order(children_of(call))[1]
            if child not in (LOCKS_NODE, LEASES_NODE)
        ]
        named.update(path for path in below if is_queue(path))
    return {name for name in named if name is not None}


async def _read(executor: ZookeeperExecutor, queues: Sequence[tuple[str, str]], until: float) -> list[Snapshot]:
    """Read queues, given by name and directory, in two round trips."""
    asking = [codec.sync(queues[0][1])]
    for _, directory in queues:
        asking += [codec.children(directory), codec.children(f"{directory}/{LOCKS_NODE}")]
        asking += [codec.children(f"{directory}/{LEASES_NODE}"), codec.get(directory)]
    _, *calls = await executor.ask(asking, until)
    parts = [calls[n : n + 4] for n in range(0, len(calls), 4)]
    found: list[list[Contender]] = []
    for (_, directory), (own, locks, leases, _) in zip(queues, parts, strict=True):
        paths = [f"{directory}/{name}" for name in children_of(own) if name not in (LOCKS_NODE, LEASES_NODE)]
        paths += [f"{directory}/{LOCKS_NODE}/{name}" for name in children_of(locks)]
        paths += [f"{directory}/{LEASES_NODE}/{name}" for name in children_of(leases)]
        found.append(in_order(paths)[0])
    every = [one.name for queue in found for one in queue]
    replies = await executor.ask([codec.get(path) for path in every], until) if every else []
    nodes = {path: node for path, call in zip(every, replies, strict=True) if (node := node_of(call)) is not None}
    timeout = executor.client.session.timeout
    return [
        _snapshot(name, directory, [one for one in queue if one.name in nodes], nodes, node_of(part[3]), timeout)
        for (name, directory), queue, part in zip(queues, found, parts, strict=True)
    ]


def _snapshot(
    name: str, directory: str, queue: list[Contender], nodes: dict[str, Node], size: Node | None, timeout: float
) -> Snapshot:
    """`queue`: the contenders in order, named by their paths."""

    def claimed(paths: Sequence[str], shown: int, weight: int) -> _Claimed:
        return _Claimed(participant(nodes[paths[0]], shown, timeout), tuple(paths), weight)

    locks = [one.name for one in queue if one.name.startswith(f"{directory}/{LOCKS_NODE}/")]
    leases = [one.name for one in queue if one.name.startswith(f"{directory}/{LEASES_NODE}/")]
    claims: list[_Claimed] = []
    if locks or leases:
        data = b"" if size is None else size.data
        kind = "mutex" if data == b"mutex" else "semaphore"
        # Java's clients do not write the number of permits. With them, the first waiter has made its permit already.
        capacity = 1 if kind == "mutex" else size_of(data) or max(len(leases) - bool(locks), 1)
        by_owner: dict[str, list[str]] = {}
        for path in leases:
            by_owner.setdefault(owner_of(leaf_of(path)), []).append(path)
        claims = [claimed(paths, len(paths), len(paths)) for paths in by_owner.values()]
        claims.sort(key=lambda claim: claim.participant.token)
        if len(leases) > capacity:
            locks = locks[1:]  # the first waiter is a Java client, and its permit is shown
        claims += [claimed([path], 1, capacity) for path in locks]
    elif queue:
        kind, capacity = queue[0].kind, queue[0].capacity
        last: Contender | None = None
        for one in queue:
            if last is not None and last.word == WRITE and (last.number, "rw") == (one.number, kind):
                # A writer that also reads is one claim with two nodes.
                claims[-1] = claims[-1]._replace(nodes=(*claims[-1].nodes, one.name))
                continue
            last = one
            claims.append(claimed([one.name], one.weight, one.weight))
    else:
        return Snapshot(LockInfo(name=name))
    return _split(name, kind, capacity, claims)


def _split(name: str, kind: str, capacity: int, claims: Sequence[_Claimed]) -> Snapshot:
    """The holders are the first claims in the queue, as far as they fit."""
    count = ahead = 0
    while count < len(claims) and fits(ahead, claims[count].weight, capacity):
        ahead += claims[count].weight
        count += 1
    holders, waiters = (tuple(claim.participant for claim in part) for part in (claims[:count], claims[count:]))
    info = LockInfo(name=name, kind=kind, capacity=capacity, holders=holders, waiters=waiters)
    return Snapshot(info, tuple(claims[:count]))
