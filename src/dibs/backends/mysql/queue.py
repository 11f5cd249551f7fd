"""Interface Queue in lease mode: one routine for each operation, and one statement where the queue is free."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby

from dibs.backends.common import atomic_queue
from dibs.backends.common.atomic_queue import QUEUES
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.calls import MICROSECONDS, FreePath, leave_all, packed, query, routine_call
from dibs.backends.mysql.connection import MysqlConnection
from dibs.backends.mysql.errors import ENDED, MODES, final, mode_mismatch, strange
from dibs.backends.mysql.executor import MysqlExecutor, number, row, split
from dibs.backends.mysql.subscriber import MysqlSubscriber
from dibs.backends.mysql.wire import Refusal, Row, Sets
from dibs.core.deadline import FOREVER
from dibs.core.queue import (
    ELECTION,
    QUEUE,
    UNFAIR,
    YOURS,
    ClientIdentity,
    Leave,
    Left,
    Place,
    Signal,
    Taken,
    Unsent,
    read_signal,
)
from dibs.core.rule import Claim, Entry, Standing
from dibs.core.runtime import Runtime
from dibs.errors import BadName, Mismatch, StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo

LONGEST_NAME = 2048
"""Bytes, with namespace and prefix: a little less than the key of an index may have."""
SWEEPS = 1 / 256
"""The part of all leaves after which a sweep forgets unused names."""
_NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_HEADS = f"FROM dibs_queues WHERE id <> '' AND until > {_NOW}"
_CLAIMS = f"FROM dibs_claims WHERE until > {_NOW}"
_SHOWN = f"SELECT name, ticket, kind, capacity, weight, until - {_NOW}, asked - {_NOW}"
_BOTH = (
    f"{_SHOWN}, asked - {_NOW}, about {_HEADS} AND {{0}} UNION ALL"
    f" {_SHOWN}, held - {_NOW}, about {_CLAIMS} AND {{0}} ORDER BY 1, 2"
)
_QUEUE = _BOTH.format("name = {0}")
_QUEUES = _BOTH.format("name BETWEEN {0} AND {1}")
_AFTER = "name > {0} AND name >= {1} AND LEFT(name, {2}) = {3}"
_NAMES = (
    f"SELECT name, 1 {_HEADS} AND {_AFTER} UNION ALL SELECT name, COUNT(*) {_CLAIMS} AND {_AFTER} GROUP BY name"
    f" ORDER BY 1 LIMIT {atomic_queue.PAGE}"
)
TAKEN = b"\x00\x01\xfe"
"""The start of a successful reply to TAKE: OK, one row, and a number of eight bytes."""
_LEFT = b"\x00\x01"
_MADE = "INSERT IGNORE INTO dibs_store VALUES (1, {})"
_WHICH = "SELECT HEX(id) FROM dibs_store WHERE one = 1"


class MysqlQueue:
    def __init__(
        self, executor: MysqlExecutor, subscriber: MysqlSubscriber, runtime: Runtime, me: ClientIdentity,
        address: Address,
    ) -> None:  # fmt: skip
        self.executor = executor
        self._subscriber = subscriber
        self._heard = subscriber.heard
        self._runtime = runtime
        self._me = me
        self._address = address
        self._prefix = address.prefix
        self._transport = executor.transport
        self.connect, self.close, self.round_trip = (
            executor.transport.connect,
            executor.transport.close,
            executor.round_trip,
        )
        self._blocks = runtime.call_soon is None
        self._left = 0
        """How often `leave_now` succeeded since the last `leave`, which sweeps for those too."""

    def take_now(self, claim: Claim, place: Place, until: float) -> Taken:
        """Take a free queue by one statement. If the queue is not free, that changes nothing, and `join` is asked."""
        prepared = claim.prepared
        path: FreePath | None = None if prepared is None else prepared.request
        if path is None:
            if claim.kind == ELECTION:  # its followers must be told
                return None
            path = FreePath(self.key(claim.name), claim, self._me.id)
            if prepared is not None:
                prepared.request = path
        if path.is_busy or (idle := self._transport.take_now()) is None:
            return None
        connection: MysqlConnection = idle if self._blocks else idle.connection
        if not connection.take_code:
            self._transport.give(idle)
            return None
        claim.asked = True
        by = int((claim.by + connection.offset) * MICROSECONDS).to_bytes(8, "little", signed=True)
        request = b"".join((path.take_size, connection.take_code, path.take, claim.id, by, path.take_end))
        if not self._blocks:
            return self._taken_soon(idle.ask(packed(request), self.executor.patience(until)), claim, path)
        reply = connection.trip(request, until)
        if reply[4:7] != TAKEN:
            path.is_busy = True
            self._not_done(connection, reply)
            return None
        claim.ticket = ticket = int.from_bytes(reply[7:15], "little")
        connection.note_reply(ticket / MICROSECONDS)
        self._transport.give(connection, is_checked=True)
        return Standing(ticket, True, claim.lease, FOREVER, False)

    def leave_now(self, claim: Claim, until: float) -> Left:
        """Leave a queue by one statement, if the claim is in its head. If not, that changes nothing."""
        prepared = claim.prepared
        path: FreePath | None = None if prepared is None else prepared.request
        if path is None or path.is_busy or self._left * SWEEPS >= 1 or (idle := self._transport.take_now()) is None:
            return None
        self._heard.pop(claim.id, None)
        connection: MysqlConnection = idle if self._blocks else idle.connection
        if not connection.leave_code:
            self._transport.give(idle)
            return None
        request = b"".join((path.leave_size, connection.leave_code, path.leave, claim.id))
        self._left += 1
        if not self._blocks:
            return self._left_soon(idle.ask(packed(request), self.executor.patience(until)), path)
        reply = connection.trip(request, until)
        if reply[4:6] != _LEFT:
            path.is_busy = True
            self._not_done(connection, reply)
            return None
        connection.used_at = connection.sent_at  # the take measured the round trip
        self._transport.give(connection, is_checked=True)
        return True

    def _not_done(self, connection: MysqlConnection, reply: bytes) -> None:
        """The queue was not free, or the statement was refused: `join` or `leave` finds out."""
        if reply[4] == 0:
            connection.note_reply(None)
            self._transport.give(connection)
            return
        connection.close()
        if reply[4] != 0xFF or int.from_bytes(reply[5:7], "little") in ENDED:
            raise StoreUnavailable("the server ended the statement")

    async def _taken_soon(self, reply: Awaitable[Sets], claim: Claim, path: FreePath) -> Standing | None:
        ticket = await self._changed(reply, path)
        if not ticket:
            return None
        claim.ticket = ticket
        return Standing(ticket, True, claim.lease, FOREVER, False)

    async def _left_soon(self, reply: Awaitable[Sets], path: FreePath) -> bool | None:
        return None if await self._changed(reply, path) is None else True

    async def _changed(self, reply: Awaitable[Sets], path: FreePath) -> int | None:
        """The LAST_INSERT_ID of the statement; None: it changed nothing."""
        try:
            found = await reply
        except Refusal as refusal:
            path.is_busy = True
            if refusal.code in ENDED:
                raise final(refusal) from None
            return None
        if found.changed == 1:
            return found.made
        path.is_busy = True
        return None

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        again = claim.asked
        self._subscriber.forget(claim.id)
        call = routine_call(
            "join", self.key(claim.name), claim.id, self._me.id, claim.kind, claim.capacity, claim.weight,
            int(claim.lease * MICROSECONDS), int(claim.waiting * MICROSECONDS), _number_of(place), claim.description,
            by=claim.by,
        )  # fmt: skip
        claim.asked = True
        try:
            said = self._words(await self.executor.ask_once(call, until), 8)
        except Unsent:
            claim.asked = again
            raise
        what, ticket, holds, left, next, revoked = map(number, said[1:7])
        self._deliver(_bytes(said[7]))
        if what == 0:
            return None
        if what == 2:
            raise _mismatch(claim, said)
        if ticket:
            claim.ticket = ticket
        if claim.prepared is not None and claim.prepared.request is not None:
            claim.prepared.request.is_busy = holds != 2
        return Standing(ticket, holds > 0, left / MICROSECONDS, _next(next), revoked == 1)

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        for claim in claims:
            self._subscriber.forget(claim.id)
        known = sorted(
            (self.key(claim.name).hex(), claim.ticket, claim.id.hex()) for claim in claims if claim.ticket is not None
        )
        listed = json.dumps(known, separators=(",", ":"))
        sets = await self.executor.ask(routine_call("renew", listed, self._me.id), until)
        _, mine, nexts, store = row(sets, 4)[:4]
        self._address.epoch.check(store)
        self._deliver(mine)
        upcoming = _upcoming(nexts)
        standing: dict[bytes | None, Row] = {said[0]: said for said in sets[0]}
        found: list[Standing | None] = []
        for claim in claims:
            said = standing.get(claim.id)
            if said is None or len(said) < 5:
                found.append(None)
                continue
            next = upcoming.get(self.key(claim.name), FOREVER)
            ticket, holds, left, revoked = map(number, said[1:5])
            found.append(Standing(ticket, holds == 1, left / MICROSECONDS, next, revoked == 1))
        return found

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        await self._change("amend", claim.name, until, id=claim.id, weight=weight)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return (await self._change("revoke", name, until, token=token))[0]

    async def evict(self, name: str, token: int, until: float) -> bool:
        done, is_repeated = await self._change("evict", name, until, token=token)
        return done or is_repeated

    async def _change(
        self, what: str, name: str, until: float, *, id: bytes = b"", token: int = 0, weight: int = 0
    ) -> tuple[bool, bool]:
        """Call change.sql: whether it was done, and whether an earlier copy may have done it."""
        if not 0 <= token < 2**63:
            return False, False
        call = routine_call("change", what, self.key(name), id, token, weight, self._me.id)
        sets, is_repeated = await self.executor.ask_often(call, until)
        return self._is_done(sets), is_repeated

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        self._subscriber.forget(claim.id)
        call = routine_call(
            "leave", self.key(claim.name), claim.id, claim.ticket or 0, self._me.id, claim.kind, int(not answered),
            by=claim.by,
        )  # fmt: skip
        sets, is_repeated = await self.executor.ask_often(call, until)
        is_done = self._is_done(sets) or is_repeated  # an earlier copy may have removed the claim
        left, self._left = self._left + 1, 0
        await self.sweep(SWEEPS * left)
        return is_done

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        """All names together, without waiting for a lock. Then each name that was locked by others, by itself."""
        for claim, _ in leaving:
            self._subscriber.forget(claim.id)
        going = [(self.key(claim.name), claim, answered) for claim, answered in leaving]
        found: list[StoreError | None] = [None] * len(going)
        order = sorted(range(len(going)), key=lambda position: going[position][0])
        busy = order
        if len({key for key, _, _ in going}) > 1:
            try:
                skipped = await self._leave_together([going[position] for position in order], until)
            except StoreError as error:
                if isinstance(error, StoreUnavailable):
                    raise
                return [error] * len(going)
            busy = [order[position] for position in skipped]
        for _, same in groupby(busy, lambda position: going[position][0]):
            positions = list(same)
            try:
                await self._leave_together([going[position] for position in positions], until, wait=True)
            except StoreError as error:
                if isinstance(error, StoreUnavailable) and len(positions) == len(going):
                    raise
                for position in positions:
                    found[position] = error
        await self.sweep(SWEEPS * len(going))
        return found

    async def _leave_together(
        self, going: list[tuple[bytes, Claim, bool]], until: float, *, wait: bool = False
    ) -> list[int]:
        """Call leave_all.sql. Gives the positions of claims that it skipped, because others have locked their names."""
        said = self._words(await self.executor.ask(leave_all(going, wait, self._me.id), until), 3)
        self._deliver(_bytes(said[1]))
        return [number(position) for position in said[2].split(b",") if position]

    async def sweep(self, chance: float) -> None:
        """Sweep with this probability."""
        if self._runtime.jitter(1.0) < chance:
            with suppress(StoreError):  # another client will
                await self.executor.ask_once(routine_call("sweep"), self._runtime.now())

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._subscriber.hear(claim.id, until))

    async def inspect(self, name: str, until: float) -> LockInfo:
        (found,) = await self.executor.ask(query(_QUEUE, self.key(name)), until)
        return _info(name, found)

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        least = self.key(prefix)
        start = self.key(after) if after else b""
        (names,) = await self.executor.ask(query(_NAMES, start, least, len(least), least), until)
        page, claims = [], 0
        for name, count in names:
            page.append(name or b"")
            claims += number(count)
            if claims >= atomic_queue.PAGE:
                break
        if not page:
            return []
        (found,) = await self.executor.ask(query(_QUEUES, page[0], page[-1]), until)
        wanted, queues = set(page), []
        for name, queue in groupby(found, lambda one: one[0] or b""):
            if name in wanted:
                queues.append(_info(name[len(self._prefix.encode()) :].decode(errors="replace"), queue))
        return queues

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._subscriber.watch(self.executor, QUEUES, self.key(name), seen, key, until)

    async def identity(self, until: float) -> str:
        return f"mysql:{await self.store_id(until)}/{self._prefix}"

    async def store_id(self, until: float) -> str:
        """The id of the store, in hexadecimal."""
        await self.executor.ask(query(_MADE, self._runtime.fresh_id()), until)
        (found,) = await self.executor.ask(query(_WHICH), until)
        if len(found) != 1:
            raise strange()
        return (found[0][0] or b"").decode(errors="replace").lower()

    async def doctor(self, until: float) -> list[Finding]:
        from dibs.backends.mysql.doctor import Doctor  # noqa: PLC0415  (few programs ask)

        return await Doctor(self.executor, self._subscriber, self._runtime, self._me, self._address).examine(until)

    def key(self, name: str) -> bytes:
        return key_of(self._prefix, name)

    def _words(self, sets: Sets, least: int) -> list[bytes]:
        """The words of a reply. Raises Replaced if the tables were created anew since the last one."""
        said, store = row(sets, 2)[:2]
        self._address.epoch.check(store)
        return split(said, least)

    def _is_done(self, sets: Sets) -> bool:
        said = self._words(sets, 3)
        self._deliver(_bytes(said[2]))
        return number(said[1]) == 1

    def _deliver(self, mine: bytes | None) -> None:
        """Tell claims of this client that they hold now."""
        if mine:
            ids = [mine[at : at + 16] for at in range(0, len(mine), 16)]
            self._me.inbox.deliver_all([(id, YOURS.value) for id in ids])


def key_of(prefix: str, name: str) -> bytes:
    """The key of a name in the tables."""
    key = (prefix + name).encode()
    if len(key) > LONGEST_NAME:
        raise BadName(f"name, namespace and prefix are {len(key)} bytes together", step=f"at most {LONGEST_NAME} here")
    return key


def _number_of(place: Place) -> int:
    """The number of a place in join.sql. A dict would be slower: members of an Enum are hashed in Python."""
    return 0 if place is QUEUE else 1 if place is UNFAIR else 2


def _next(microseconds: int) -> float:
    return FOREVER if microseconds < 0 else microseconds / MICROSECONDS


def _upcoming(nexts: bytes | None) -> dict[bytes, float]:
    found = {}
    for part in (nexts or b"").split(b","):
        if part:
            name, _, microseconds = part.partition(b"=")
            found[_bytes(name)] = _next(number(microseconds))
    return found


def _bytes(written: bytes) -> bytes:
    """Decode the hexadecimal digits that a routine gave."""
    try:
        return bytes.fromhex(written.decode())
    except ValueError:
        raise strange() from None


def _info(name: str, queue: Iterable[Row]) -> LockInfo:
    """Times in the rows are relative to the server's now."""
    alive = [_entry(one) for one in queue]
    return atomic_queue.shown(name, alive, 0.0, datetime.now(UTC))


def _entry(shown: Row) -> Entry:
    _, ticket, kind, capacity, weight, left, asked, held, description = shown
    return Entry(
        number(ticket), b"", b"", (kind or b"").decode(errors="replace"), number(capacity), number(weight),
        number(left) / MICROSECONDS, number(asked) / MICROSECONDS,
        None if held is None else number(held) / MICROSECONDS, False, (description or b"").decode(errors="replace"),
    )  # fmt: skip


def _mismatch(claim: Claim, said: list[bytes]) -> Mismatch:
    if len(said) < 10:
        raise strange()
    kind = _bytes(said[8]).decode(errors="replace")
    return mode_mismatch(kind) if kind in MODES else atomic_queue.mismatch(kind, number(said[9]), claim)
