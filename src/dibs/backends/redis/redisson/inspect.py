"""What others can see of a name in Redisson's layout: ids, and the time that is left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dibs.backends.redis.errors import Refusal, final, strange
from dibs.backends.redis.executor import RedisExecutor
from dibs.backends.redis.redisson import scripts
from dibs.backends.redis.redisson.names import Names, RedissonKeys
from dibs.backends.redis.scripts import Command, ScriptCall
from dibs.core.rule import RW_CAPACITY
from dibs.errors import StoreUnavailable
from dibs.info import LockInfo, Participant, bounded

_HOLDER = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:.+")
PAGE = 500
_COUNT = 1000
"""Keys that one SCAN examines."""


def look(names: Names) -> ScriptCall:
    keys = (names.queue, names.deadlines, names.token, names.permits)
    return ScriptCall(scripts.LOOK, names.key, (names.readers,), more=keys)


def read(name: str, reply: Sequence[Any]) -> LockInfo:
    """Parse the reply of lua/look.lua. A key that is none of Redisson's is shown as free."""
    try:
        match reply:
            case [_, b"hash", int(left), int(token), list(fields), list(readers), list(waiters)]:
                return _of_hash(name, left, token, fields, readers, waiters)
            case [_, b"string", bytes(value), list(permits)] if value.lstrip(b"-").isdigit():
                free, holders = int(value), tuple(_permit(id, left) for id, left in permits)
                return LockInfo(name=name, kind="semaphore", capacity=free + len(holders), holders=holders)
            case [_, bytes(), list(waiters)]:
                return LockInfo(name=name, waiters=_waiters(waiters))
            case [_, bytes(), *_]:
                return LockInfo(name=name)
    except (TypeError, ValueError, AttributeError):
        pass
    raise strange()


def _of_hash(
    name: str, left: int, token: int, fields: Sequence[bytes], readers: Sequence[Any], waiters: Sequence[Any]
) -> LockInfo:
    counts = dict(zip(fields[::2], fields[1::2], strict=True))
    mode = counts.pop(b"mode", None)
    if not all(_HOLDER.fullmatch(id) and count.isdigit() for id, count in counts.items()):
        return LockInfo(name=name, waiters=_waiters(waiters))  # a hash of another program
    if mode is None:
        holders = tuple(_holder(id, left, count, token=token) for id, count in counts.items())
        return LockInfo(name=name, holders=holders, waiters=_waiters(waiters))
    own = dict(readers)
    holders = tuple(
        _holder(id, own.get(id, left), count, RW_CAPACITY if id.endswith(b":write") else 1)
        for id, count in counts.items()
    )
    return LockInfo(name=name, kind="rw", capacity=RW_CAPACITY, holders=holders)


def _holder(id: bytes, left: int, count: bytes, weight: int = 1, token: int = 0) -> Participant:
    holds = int(count)
    return Participant(
        owner=id.decode(errors="replace"), remaining=bounded(left / 1000), weight=weight, token=token,
        info={"holds": holds} if holds > 1 else {},
    )  # fmt: skip


def _permit(id: bytes, left: int) -> Participant:
    return Participant(owner=id.hex(), remaining=bounded(int(left) / 1000))


def _waiters(waiters: Sequence[Any]) -> tuple[Participant, ...]:
    return tuple(
        Participant(owner=id.decode(errors="replace"), remaining=bounded(int(left) / 1000)) for id, left in waiters
    )


async def page(executor: RedisExecutor, keys: RedissonKeys, prefix: str, after: str, until: float) -> list[LockInfo]:
    """Names have no mark of their own, so every key with the prefix is looked at. A semaphore without leases looks like
    any number, and is left out."""
    names = [name for name in await _scan(executor, keys, prefix, until) if name > after]
    found: list[LockInfo] = []
    while not found and names:
        part, names = names[:PAGE], names[PAGE:]
        calls = [look(keys.of(name)) for name in part]
        for name, reply in zip(part, await executor.ask_all(calls, until), strict=True):
            if isinstance(reply, StoreUnavailable):
                raise reply
            info = read(name, reply)
            if info.holders or info.waiters:
                found.append(info)
    return found


async def _scan(executor: RedisExecutor, keys: RedissonKeys, prefix: str, until: float) -> list[str]:
    pattern, found = keys.pattern(prefix), set[bytes]()
    for endpoint in await executor.primaries(until):
        cursor = b""
        while cursor != b"0":
            reply = await executor.command_at(
                endpoint, Command("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", _COUNT), until
            )
            if isinstance(reply, Refusal):
                raise final(reply, pattern)
            if not isinstance(reply, list) or len(reply) != 2:
                raise strange()
            cursor, some = reply
            found.update(some)
    return sorted(name for key in found if (name := keys.name(key)) is not None)
