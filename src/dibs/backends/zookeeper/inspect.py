"""Inspecting queues, and asking or removing one holder. Queues are read from the nodes of all clients.

A node that goes while it is read is left out; what others write into theirs is shown and means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dibs.backends.zookeeper.paths import directory_of, is_queue, name_of, path_of
from dibs.backends.zookeeper.queue_rule import (
    LEASES_NODE,
    LOCKS_NODE,
    REVOKE,
    WRITE,
    Contender,
    in_order,
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
"""How many claims an onlooker is given at once; a queue is never cut."""
_AT_ONCE = 200
"""How many queues are asked for at once."""


class Claimed(NamedTuple):
    """One claim as it stands: what is shown of it, and its nodes."""

    participant: Participant
    nodes: tuple[str, ...]


class Seen(NamedTuple):
    info: LockInfo
    holders: tuple[Claimed, ...] = ()


class _Found(NamedTuple):
    """A node, where it stands in its queue."""

    path: str
    contender: Contender
    node: Node


async def read(executor: ZookeeperExecutor, chroot: str, name: str, until: float) -> Seen:
    directory = chroot + path_of(name)
    return (await _read(executor, [(name, directory)], until))[0]


async def page(executor: ZookeeperExecutor, chroot: str, prefix: str, after: str, until: float) -> list[LockInfo]:
    names = await _names(executor, chroot, prefix, until)
    wanted = sorted(name for name in names if name.startswith(prefix) and name > after)
    found: list[LockInfo] = []
    claims = 0
    for n in range(0, len(wanted), _AT_ONCE):
        part = [(name, chroot + path_of(name)) for name in wanted[n : n + _AT_ONCE]]
        for seen in await _read(executor, part, until):
            size = len(seen.info.holders) + len(seen.info.waiters)
            if size:
                found.append(seen.info)
                claims += size
        if claims >= PAGE:
            break
    return found


async def evict(executor: ZookeeperExecutor, chroot: str, name: str, token: int, until: float) -> bool:
    """A holder, never a waiter."""
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
    """Watch the first node, or, while there is none, the directory."""
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
    """An id in a node of our own, which the first caller makes."""
    path = f"{chroot}/%dibs"
    asking = [codec.create(path, b"", executor.acl, codec.PERSISTENT), codec.exists(path)]
    calls = await executor.ask_in([chroot] if chroot else [], asking, until)
    checked(calls[0], codec.NODE_EXISTS)
    checked(calls[1])
    stat = calls[1].value
    assert isinstance(stat, codec.Stat)
    return f"zookeeper:{stat.czxid:x}-{stat.ctime:x}"


async def _holder(executor: ZookeeperExecutor, chroot: str, name: str, token: int, until: float) -> Claimed | None:
    seen = await read(executor, chroot, name, until)
    return next((one for one in seen.holders if one.participant.token == token), None)


async def _names(executor: ZookeeperExecutor, chroot: str, prefix: str, until: float) -> set[str]:
    """What may be lines there: one level below where the prefix points, and two below the root. With a prefix that is
    a path, and on the second level, they are called by their paths: so others know them."""
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


async def _read(executor: ZookeeperExecutor, queues: Sequence[tuple[str, str]], until: float) -> list[Seen]:
    """All of them in three waits."""
    asking = [codec.sync(queues[0][1])]
    for _, directory in queues:
        asking += [codec.children(directory), codec.children(f"{directory}/{LOCKS_NODE}")]
        asking += [codec.children(f"{directory}/{LEASES_NODE}"), codec.get(directory)]
    _, *calls = await executor.ask(asking, until)
    parts = [calls[n : n + 4] for n in range(0, len(calls), 4)]
    found: list[list[str]] = []
    for (_, directory), (own, locks, leases, _) in zip(queues, parts, strict=True):
        paths = [f"{directory}/{name}" for name in children_of(own) if name not in (LOCKS_NODE, LEASES_NODE)]
        paths += [f"{directory}/{LOCKS_NODE}/{name}" for name in children_of(locks)]
        paths += [f"{directory}/{LEASES_NODE}/{name}" for name in children_of(leases)]
        found.append([path for path in paths if in_order([path])[0]])
    every = [path for paths in found for path in paths]
    nodes = await executor.ask([codec.get(path) for path in every], until) if every else []
    there = {path: node for path, call in zip(every, nodes, strict=True) if (node := node_of(call)) is not None}
    timeout = executor.client.session.timeout
    return [
        _seen(name, directory, [path for path in paths if path in there], there, node_of(part[3]), timeout)
        for (name, directory), paths, part in zip(queues, found, parts, strict=True)
    ]


def _seen(
    name: str, directory: str, paths: list[str], nodes: dict[str, Node], size: Node | None, timeout: float
) -> Seen:
    inside = len(directory) + 1
    if any(path[inside:].startswith((f"{LOCKS_NODE}/", f"{LEASES_NODE}/")) for path in paths):
        return _semaphore(name, directory, paths, nodes, size, timeout)
    line = _ordered(paths, nodes)
    if not line:
        return Seen(LockInfo(name=name))
    kind, capacity = line[0].contender.kind, line[0].contender.capacity
    claims: list[tuple[Claimed, int]] = []
    last: Contender | None = None
    for one in line:
        weight = one.contender.weight
        if last is not None and last.word == WRITE and (last.number, "rw") == (one.contender.number, kind):
            writer, all_of_it = claims.pop()  # who reads too is one claim, and goes with both nodes
            claims.append((Claimed(writer.participant, (*writer.nodes, one.path)), all_of_it))
            continue
        last = one.contender
        claims.append((Claimed(participant(one.node, weight, timeout), (one.path,)), weight))
    return _split(name, kind, capacity, claims)


def _semaphore(
    name: str, directory: str, paths: list[str], nodes: dict[str, Node], size: Node | None, timeout: float
) -> Seen:
    leases = _ordered([path for path in paths if f"/{LEASES_NODE}/" in path[len(directory) :]], nodes)
    locks = _ordered([path for path in paths if f"/{LOCKS_NODE}/" in path[len(directory) :]], nodes)
    said = b"" if size is None else size.data
    kind = "mutex" if said == b"mutex" else "semaphore"
    capacity = 1 if kind == "mutex" else size_of(said)
    if not capacity:  # Java's clients know their number of permits by themselves; who waits has one there already
        capacity = max(len(leases) - bool(locks), 1)
    together: dict[str, list[_Found]] = {}
    for one in leases:
        together.setdefault(owner_of(one.contender.name), []).append(one)
    claims = [
        (
            Claimed(participant(group[0].node, len(group), timeout), tuple(one.path for one in group)),
            len(group),
        )
        for group in together.values()
    ]
    claims.sort(key=lambda claim: claim[0].participant.token)
    if sum(weight for _, weight in claims) > capacity:
        locks = locks[1:]  # Java's first in the queue has its permit there already, and is shown by that
    claims += [(Claimed(participant(one.node, 1, timeout), (one.path,)), capacity) for one in locks]
    return _split(name, kind, capacity, claims)


def _split(name: str, kind: str, capacity: int, claims: Iterable[tuple[Claimed, int]]) -> Seen:
    """Those who hold are the first of the queue, as far as they fit."""
    holders: list[Claimed] = []
    waiters: list[Claimed] = []
    ahead = 0
    for claim, weight in claims:
        if not waiters and fits(ahead, weight, capacity):
            holders.append(claim)
            ahead += weight
        else:
            waiters.append(claim)
    info = LockInfo(
        name=name,
        kind=kind,
        capacity=capacity,
        holders=tuple(claim.participant for claim in holders),
        waiters=tuple(claim.participant for claim in waiters),
    )
    return Seen(info, tuple(holders))


def _ordered(paths: list[str], nodes: dict[str, Node]) -> list[_Found]:
    by_name = {path.rpartition("/")[2]: path for path in paths}
    queue, _ = in_order(by_name)
    return [_Found(by_name[one.name], one, nodes[by_name[one.name]]) for one in queue]
