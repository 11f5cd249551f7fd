"""`doctor`: examine each server, its settings and its clock, write a key, and send and receive a message.

No claim is touched, and the only key that is made expires at once. diagnosis.py says what the facts mean. Managed
servers refuse CONFIG, and some users may not call INFO: then less is reported, with a note. A silent server is
reported, and the others are examined. It is an error only if no server answers.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any

from dibs.backends.redis import diagnosis, rights, scripts
from dibs.backends.redis.address import Endpoint
from dibs.backends.redis.connection import TIME
from dibs.backends.redis.context import Context
from dibs.backends.redis.diagnosis import Clock, Primary, Replica
from dibs.backends.redis.discovery import named
from dibs.backends.redis.errors import Refusal
from dibs.backends.redis.scripts import MICROSECONDS, Command, ScriptCall
from dibs.core.deadline import LEAST_PATIENCE
from dibs.core.queue import YOURS
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding, printable

_TIMES = 3
"""How often each clock is read."""
_SETTINGS = ("appendfsync", "save")
_RIGHTS = "give this user the rights that the user of Redisson has"


async def examine(context: Context, until: float) -> list[Finding]:
    return await _Examination(context, until).findings()


class _Examination:
    def __init__(self, context: Context, until: float) -> None:
        self._context = context
        self._executor = context.executor
        self._address = context.address
        self._until = until
        self._is_dibs = context.address.layout == "dibs"
        self._rights = rights.least(context.address) if self._is_dibs else _RIGHTS

    async def findings(self) -> list[Finding]:
        address, lease = self._address, self._context.identity.lease
        try:
            primaries, silent = await self._primaries()
        except StoreError as error:
            if not _is_denied(error):
                raise
            return [Finding("danger", error.what, self._rights)]
        tried = await self._try_requests()
        heard, unheard = await self._try_a_message([node.endpoint for node in primaries])
        clocks, unreached = await self._clocks(primaries)
        apart = list(diagnosis.clocks_apart(clocks, lease))
        sound = not (tried or silent or diagnosis.may_evict(primaries))
        return [
            *diagnosis.versions(primaries),
            *diagnosis.promises(primaries, address, lease, heard=heard, ordered=not apart, sound=sound),
            *diagnosis.shared(address),
            *silent,
            *tried,
            *unheard,
            *diagnosis.servers(primaries, address),
            *await self._cluster(primaries),
            *apart,
            *diagnosis.wrong_clocks(primaries, time.time() - self._context.runtime.now()),
            *unreached,
            *diagnosis.slow_round_trip(primaries, lease),
            *diagnosis.availability(address, primaries),
            *diagnosis.encryption(address),
            *self._least_rights(),
        ]

    def _least_rights(self) -> list[Finding]:
        what = "the minimal rights of a user here (+select for a database other than 0)"
        return [Finding("note", what, self._rights)] if self._is_dibs else []

    async def _primaries(self) -> tuple[list[Primary], list[Finding]]:
        """The primaries that answer, and findings about the others."""
        primaries: list[Primary] = []
        silent: dict[Endpoint, StoreUnavailable] = {}
        for endpoint in await self._executor.primaries(self._until):
            try:
                primaries.append(await self._look_at(endpoint))
            except StoreUnavailable as error:
                silent[endpoint] = error
        if not primaries:
            raise next(iter(silent.values()), StoreUnavailable("no primary is known", step="check the servers"))
        return primaries, [
            Finding(
                "danger", f"{named(endpoint)} does not answer ({error.what}): it grants and renews nothing",
                error.step or diagnosis.CHECK_LOG,
            )
            for endpoint, error in silent.items()
        ]  # fmt: skip

    async def _look_at(self, endpoint: Endpoint) -> Primary:
        facts = diagnosis.facts(await self._command_at(endpoint, Command("INFO")))
        settings = {}
        for name in _SETTINGS:
            match await self._command_at(endpoint, Command("CONFIG", "GET", name)):
                case [_, bytes() as value]:
                    settings[name] = value.decode(errors="replace")
        replicas = [
            Replica(self._address.reachable(reply.endpoint), *reply[1:])
            for name, value in facts.items()
            if (reply := diagnosis.read_replica(name, value)) is not None
        ]
        return Primary(endpoint, facts, settings, await self._clock(endpoint), replicas)

    async def _clock(self, endpoint: Endpoint) -> Clock:
        """Read the clock with the shortest of several round trips: the first one may have to connect."""
        now = self._context.runtime.now
        found: list[Clock] = []
        for _ in range(_TIMES):
            sent = now()
            reply = await self._command_at(endpoint, TIME)
            if isinstance(reply, Refusal):
                raise StoreError(printable(reply.text))
            read, back = int(reply[0]) + int(reply[1]) / MICROSECONDS, now()
            found.append(Clock(read - back, read - sent, back - sent))
        return min(found, key=lambda clock: clock.took)

    async def _clocks(self, primaries: list[Primary]) -> tuple[dict[Endpoint, Clock], list[Finding]]:
        """The clocks of the primaries and their replicas, and findings about replicas that cannot be asked."""
        clocks = {node.endpoint: node.clock for node in primaries}
        missing: list[Finding] = []
        for replica in [replica for node in primaries for replica in node.replicas if replica.is_online]:
            try:
                clocks[replica.endpoint] = await self._clock(replica.endpoint)
            except StoreUnavailable as error:
                what = (
                    f"the replica {named(replica.endpoint)} cannot be reached from here ({error.what}): its clock was "
                    "not compared, and clients cannot reach it after a fail-over"
                )
                missing.append(Finding("note", what, "make every server reachable for clients"))
            except StoreError as error:
                what = (
                    f"the replica {named(replica.endpoint)} refuses the login ({error.what}): after a fail-over no "
                    "client gets in"
                )
                fix = "create the same users and passwords there: they are not replicated"
                missing.append(Finding("danger", what, fix))
        return clocks, missing

    async def _try_requests(self) -> list[Finding]:
        """Run a script that only reads, and write a key."""
        key = f"{self._address.prefix}dibs:doctor".encode()
        look = ScriptCall(scripts.LOOK, self._context.keys.queue("dibs:doctor"), ())
        write = Command("SET", key, "", "PX", 1)
        return [
            *await self._try("no script can be run", self._executor.ask(look, self._soon())),
            *await self._try("no key can be written", self._executor.command(key, write, self._soon())),
        ]

    async def _try(self, what: str, request: Awaitable[object]) -> list[Finding]:
        try:
            await request
        except StoreError as error:
            fix = self._rights if _is_denied(error) else error.step or diagnosis.CHECK_LOG
            return [Finding("danger", f"{what}: {error.what}", fix)]
        return []

    async def _try_a_message(self, endpoints: list[Endpoint]) -> tuple[bool, list[Finding]]:
        """Publish on each server, as scripts do, for a claim that does not exist, and wait for the message."""
        context, subscriber, inbox = self._context, self._context.subscriber, self._context.identity.inbox
        if subscriber is None:
            return False, [Finding("note", 'no messages, by wake="spin": waiters poll ten times a second')]
        if not self._is_dibs and self._address.topology == "cluster":
            return False, []  # the first lock decides how to subscribe: as Java does in this cluster
        id = context.runtime.fresh_id()
        inbox.expect(id)
        try:
            await subscriber.ready(self._soon())
            if not self._is_dibs:  # this client has no channel of its own
                await subscriber.listen(context.channel, id, self._soon())
            for endpoint in endpoints:
                reply = await self._command_at(endpoint, Command("PUBLISH", context.channel, id + YOURS.value))
                if isinstance(reply, Refusal):
                    raise StoreError(printable(reply.text))
                if await inbox.wait(id, self._soon()) is None:
                    raise StoreUnavailable(f"a message was sent at {named(endpoint)} and did not arrive")
        except StoreError as error:
            fix = self._rights if _is_denied(error) else 'fix that, or use wake="spin"'
            what = f"waiters are not told that they hold, and must poll: {error.what}"
            return False, [Finding("danger", what, fix)]
        finally:
            subscriber.ignore(context.channel, id)
            inbox.forget(id)
        return True, []

    async def _cluster(self, primaries: list[Primary]) -> list[Finding]:
        if self._address.topology != "cluster" and primaries[0].facts.get("cluster_enabled") != "1":
            return []
        reply = await self._command_at(primaries[0].endpoint, Command("CLUSTER", "INFO"))
        return list(diagnosis.cluster(diagnosis.facts(reply), self._address))

    async def _command_at(self, endpoint: Endpoint, command: Command) -> Any:
        return await self._executor.command_at(endpoint, command, self._soon())

    def _soon(self) -> float:
        return min(self._until, self._context.runtime.now() + LEAST_PATIENCE)


def _is_denied(error: StoreError) -> bool:
    """Judged by the texts of servers, which differ inside a script."""
    return any(words in error.what for words in ("NOPERM", "no permissions", "can't run this command"))
