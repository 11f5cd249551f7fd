"""What others can see of a name in Redisson's layout: ids, and the time that is left."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from dibs.backends.redis.address import Endpoint
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


class Listing:
    """The names that are in use, page by page, as they were when the list began.

    Names have no mark of their own. So every hash with the prefix is looked at, and every name that has permits. A
    semaphore without leases looks like any number, and is left out.
    """

    def __init__(self, executor: RedisExecutor, keys: RedissonKeys) -> None:
        self._executor = executor
        self._keys = keys
        self._names: dict[str, list[str]] = {}
        """By prefix: the names of the latest list."""

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        names = self._names.get(prefix) if after else None
        if names is None:
            names = await self._scan(prefix, until)
            self._names = {prefix: names}
        found: list[LockInfo] = []
        at = bisect_right(names, after)
        while not found and at < len(names):
            part, at = names[at : at + PAGE], at + PAGE
            calls = [look(self._keys.of(name)) for name in part]
            for name, reply in zip(part, await self._executor.ask_all(calls, until), strict=True):
                if isinstance(reply, StoreUnavailable):
                    raise reply
                info = read(name, reply)
                if info.holders or info.waiters:
                    found.append(info)
        return found

    async def _scan(self, prefix: str, until: float) -> list[str]:
        found = set[str]()
        for endpoint in await self._executor.primaries(until):
            locks = await self._keys_of(endpoint, self._keys.pattern(prefix), b"hash", until)
            permits = await self._keys_of(endpoint, b"*:timeout", b"zset", until)
            for key in [*locks, *map(semaphore_of, permits)]:
                if (name := self._keys.name(key)) is not None and name.startswith(prefix):
                    found.add(name)
        return sorted(found)

    async def _keys_of(self, endpoint: Endpoint, pattern: bytes, kind: bytes, until: float) -> set[bytes]:
        """The keys of a type. Redis 5 cannot choose by type: there all keys with the pattern are looked at."""
        found, cursor = set[bytes](), b"0"
        more: tuple[bytes, ...] = (b"TYPE", kind)
        while True:
            command = Command("SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT, *more)
            reply = await self._executor.command_at(endpoint, command, until)
            if isinstance(reply, Refusal):
                if not more or reply.code != "ERR":
                    raise final(reply, pattern)
                more = ()
                continue
            if not isinstance(reply, list) or len(reply) != 2:
                raise strange()
            cursor, some = reply
            found.update(some)
            if cursor == b"0":
                return found


def semaphore_of(permits: bytes) -> bytes:
    """The name of a semaphore, from the key of its permits.

    >>> semaphore_of(b"{api}:timeout"), semaphore_of(b"{shop}:api:timeout")
    (b'api', b'{shop}:api')
    """
    name = permits.removesuffix(b":timeout")
    inner = name.removeprefix(b"{").removesuffix(b"}")
    return inner if name == b"{%b}" % inner and b"{" not in inner else name
