"""Requests to the server that has a key: find it, follow redirections, and ask again after a refusal that may pass.

A request ends done, not done or unknown. A refused request is not done: errors.py says which refusals are asked again,
until the caller's deadline. If a connection breaks, the outcome is unknown, and the caller gets StoreUnavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dibs.backends.common.executor import Executor
from dibs.backends.redis.address import Endpoint
from dibs.backends.redis.connection import Reply
from dibs.backends.redis.errors import ELSEWHERE, LATER, REDIRECTIONS, Refusal, final, strange, unavailable
from dibs.backends.redis.failover import Term
from dibs.backends.redis.scripts import Command, Request, ScriptCall, Wait
from dibs.backends.redis.topology import Topology
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE
from dibs.core.queue import Unsent
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError, StoreUnavailable

ASKING = Command("ASKING")
_FOR_REPLICAS = 1.0
"""Seconds that WAIT may take: less than an attempt, and at most half of what is left, so that its reply still comes."""
_REDIRECTIONS = 5
"""Redirections to follow in a row before a pause."""


class Transport(Protocol):
    """Connections to all servers: `Servers` for threads, `AioServers` for event loops. `until` may have passed: a reply
    that has arrived by then is still read."""

    def pool_now(self, endpoint: Endpoint) -> Any:
        """The pool of connections to that server; None: there is none yet."""

    async def exchange(self, endpoint: Endpoint, requests: Sequence[Request], until: float) -> list[Reply]: ...

    async def exchange_all(
        self, parts: Mapping[Endpoint, Sequence[Request]], until: float
    ) -> dict[Endpoint, list[Reply] | StoreUnavailable]:
        """Exchange with several servers at once."""

    def tell(self, endpoint: Endpoint, request: bytes) -> None:
        """Send a packed request whose reply nobody awaits, if a connection is idle. Best effort."""

    async def connect(self, endpoint: Endpoint, until: float) -> None:
        """Have a connection to that server ready."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close what is open, and touch nothing else of the parent's."""


class RedisExecutor(Executor[ScriptCall, list[Any]]):
    def __init__(
        self, transport: Transport, topology: Topology, runtime: Runtime, replicas: int, round_trip: Callable[[], float]
    ) -> None:
        """`replicas`: how many replicas must have a replicated write. `round_trip`: seconds to the slowest server."""
        super().__init__(runtime)
        self._transport = transport
        self._topology = topology
        self.round_trip = round_trip
        self.replicas = replicas
        self.failover = topology.failover
        self.close = transport.close

    def pool_now(self, key: bytes) -> Any:
        """The pool of the server that has the key. None: the server is not known yet, or a reply alone does not count
        because of replicas or Sentinel."""
        if self.replicas or self.failover is not None:
            return None
        endpoint = self._topology.locate(key)
        return None if endpoint is None else self._transport.pool_now(endpoint)

    def group(self, key: bytes) -> object:
        """Keys of one group may be in one script."""
        return self._topology.group(key)

    def tell(self, key: bytes, request: bytes) -> None:
        """Send a packed request whose reply nobody awaits to the server that has the key. Best effort."""
        endpoint = self._topology.locate(key)
        if endpoint is not None:
            self._transport.tell(endpoint, request)

    async def ask(self, call: ScriptCall, until: float) -> list[Any]:
        """Run an idempotent script; ask again if a connection broke."""
        return (await self.ask_often(call, until))[0]

    async def ask_once(self, call: ScriptCall, until: float) -> list[Any]:
        answer: list[Any] = (await self._ask(call, (), until))[0]
        return answer

    async def connect(self, until: float) -> None:
        """Have a connection to each primary."""
        for endpoint in await self.primaries(until):
            await self._transport.connect(endpoint, until)

    async def ask_replicated(self, call: ScriptCall, until: float) -> tuple[list[Any], bool]:
        """Run a script once. Also whether its writes count: enough replicas have them, and the server is still the
        primary."""
        if self.failover is None and not self.replicas:  # nearly always
            return await self.ask_once(call, until), True
        term = await self.term(until)
        replies = await self._ask(call, self._wait(until), until)
        is_replicated = not self.replicas or self._is_enough(replies[1])
        return replies[0], is_replicated and await self._counts(term, until)

    async def term(self, until: float) -> Term | None:
        """With Sentinel: the current term of the primary."""
        failover = self.failover
        if failover is not None and (failover.term is None or not self._topology.all()):
            await self._learn(until)
        return None if failover is None else failover.term

    async def _counts(self, term: Term | None, until: float) -> bool:
        """Whether a reply from that term counts: see failover.py."""
        failover = self.failover
        if failover is None or failover.confirms(term):
            return True
        try:
            await self._learn(until)
        except StoreUnavailable:
            return False
        return failover.confirms(term)

    async def ask_all(self, calls: Sequence[ScriptCall], until: float) -> list[Any]:
        """Run many scripts. Each gets its own reply or its own StoreUnavailable."""
        return await self._ask_all(calls, (), until)

    async def ask_all_replicated(self, calls: Sequence[ScriptCall], until: float) -> list[Any]:
        """Run many idempotent scripts; ask again while no server answers. A write that too few replicas have gets
        StoreUnavailable."""
        pause = FIRST_PAUSE
        while True:
            found = await self._ask_all_in_term(calls, until)
            if not all(isinstance(one, StoreUnavailable) for one in found) or self._runtime.now() + pause >= until:
                return found
            await self.pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _ask_all_in_term(self, calls: Sequence[ScriptCall], until: float) -> list[Any]:
        try:
            term = await self.term(until)
        except StoreUnavailable as error:
            return [error] * len(calls)
        found = await self._ask_all(calls, self._wait(until), until)
        return found if await self._counts(term, until) else [self.not_replicated()] * len(calls)

    async def _ask_all(self, calls: Sequence[ScriptCall], wait: tuple[Request, ...], until: float) -> list[Any]:
        """Ask the known servers first: finding the others may take all the time that is left."""
        found: dict[int, Any] = {}
        unlocated = []
        parts: dict[Endpoint, list[ScriptCall]] = {}
        for call in calls:
            endpoint = self._topology.locate(call.key)
            if endpoint is None:
                unlocated.append(call)
            else:
                parts.setdefault(endpoint, []).append(call)
        await self._ask_parts(parts, wait, until, found)
        if unlocated:
            parts = {}
            try:
                for call in unlocated:
                    parts.setdefault(await self._find(call.key, until), []).append(call)
            except StoreUnavailable as error:
                found.update((id(call), error) for call in unlocated)
            else:
                await self._ask_parts(parts, wait, until, found)
        return [found[id(call)] for call in calls]

    async def _ask_parts(
        self, parts: Mapping[Endpoint, list[ScriptCall]], wait: tuple[Request, ...], until: float, found: dict[int, Any]
    ) -> None:
        """Ask each server its scripts, and enter the outcomes into `found` by id()."""
        asked = {endpoint: (*calls, *wait) for endpoint, calls in parts.items()}
        for endpoint, replies in (await self._transport.exchange_all(asked, until)).items():
            calls = parts[endpoint]
            if isinstance(replies, StoreUnavailable):
                self._topology.forget(endpoint)
                found.update((id(call), replies) for call in calls)
                continue
            unloaded: list[ScriptCall] = []
            for call, reply in zip(calls, replies, strict=False):
                if isinstance(reply, Refusal) and reply.code == "NOSCRIPT":
                    unloaded.append(call)
                    if len(unloaded) > 1:  # the first one loads the script for the others
                        continue
                own = [reply, *replies[len(calls) :]]
                found[id(call)] = await self._outcome(call, wait, endpoint, own, until)
            if len(unloaded) > 1:
                await self._ask_parts({endpoint: unloaded[1:]}, wait, until, found)

    async def _outcome(
        self, call: ScriptCall, wait: tuple[Request, ...], endpoint: Endpoint, replies: list[Reply], until: float
    ) -> Any:
        """The reply to one of many scripts, or why there is none that counts."""
        try:
            if not call.is_answered_by(replies[0]):
                replies = await self._insist_on(call, wait, endpoint, replies[0], until)
        except (StoreError, Mismatch) as error:
            return unavailable(error)
        return replies[0] if len(replies) == 1 or self._is_enough(replies[1]) else self.not_replicated()

    def _wait(self, until: float) -> tuple[Request, ...]:
        if not self.replicas:
            return ()
        patience = min(_FOR_REPLICAS, (until - self._runtime.now()) / 2)
        return (Wait(self.replicas, patience),)

    def not_replicated(self) -> StoreUnavailable:
        if self.failover is not None and not self.failover.confirms(self.failover.term):
            return StoreUnavailable(
                "no majority of the sentinels confirms the primary", step="check that the sentinels run"
            )
        if not self.replicas:
            return StoreUnavailable("the primary changed meanwhile", step="try again")
        step = "check the replication of this server, or lower replicas="
        return StoreUnavailable(f"fewer than {self.replicas} replicas have it", step=step)

    def _is_enough(self, count: Reply) -> bool:
        """Read the reply to WAIT. A former primary that now follows another server counts no replicas."""
        if isinstance(count, Refusal) and count.code == "NOPERM":
            raise final(count, b"")
        return isinstance(count, int) and count >= self.replicas

    async def command(self, key: bytes, command: Command, until: float) -> Reply:
        """Run a command of Redis on the server that has the key."""
        endpoint = await self._find(key, until)
        (reply,) = await self._exchange(endpoint, (command,), until)
        if isinstance(reply, Refusal):
            (reply,) = await self._insist(key, (command,), None, endpoint, reply, until)
        return reply

    async def command_at(self, endpoint: Endpoint, command: Command, until: float) -> Reply:
        """Run a command of Redis on this server. A refusal is returned, not raised."""
        return (await self._exchange(endpoint, (command,), until))[0]

    async def primaries(self, until: float) -> list[Endpoint]:
        """Every server that holds a part of the keys."""
        if not self._topology.all():
            await self._learn(until)
        return self._topology.all()

    async def _ask(self, call: ScriptCall, wait: tuple[Request, ...], until: float) -> list[Reply]:
        """Run a script, and then WAIT where replicas count."""
        endpoint = self._topology.locate(call.key) or await self._find(call.key, until)
        replies = await self._exchange(endpoint, (call, *wait), until)
        if call.is_answered_by(replies[0]):
            return replies
        return await self._insist_on(call, wait, endpoint, replies[0], until)

    async def _exchange(self, endpoint: Endpoint, requests: Sequence[Request], until: float) -> list[Reply]:
        try:
            return await self._transport.exchange(endpoint, requests, until)
        except StoreUnavailable:
            self._topology.forget(endpoint)
            raise

    async def _learn(self, until: float) -> None:
        await self._runtime.offload(lambda: self._topology.learn(until))

    async def _find(self, key: bytes, until: float) -> Endpoint:
        endpoint = self._topology.locate(key)
        if endpoint is None:
            try:
                await self._learn(until)
            except StoreUnavailable as error:
                raise Unsent(error.what, step=error.step) from error.__cause__
            endpoint = self._topology.locate(key)
        if endpoint is None:
            raise Unsent("no server has these keys now", step="check CLUSTER SLOTS")
        return endpoint

    async def _insist_on(
        self, call: ScriptCall, wait: tuple[Request, ...], endpoint: Endpoint, reply: Reply, until: float
    ) -> list[Reply]:
        """`_insist` for a script whose first reply was no answer."""
        if not isinstance(reply, Refusal):
            raise strange()
        replies = await self._insist(call.key, (call, *wait), call.whole(), endpoint, reply, until)
        if not call.is_answered_by(replies[0]):
            raise strange()
        return replies

    async def _insist(
        self, key: bytes, asked: tuple[Request, ...], whole: Request | None, endpoint: Endpoint, refusal: Refusal,
        until: float,
    ) -> list[Reply]:  # fmt: skip
        """Ask again after a refusal: load the script, follow a redirection, or pause. `whole`: the request with the
        script's text."""
        pause, redirections, is_guest = FIRST_PAUSE, 0, False
        while True:
            requests = asked
            to = self._redirected(key, endpoint, refusal)
            if refusal.code == "NOSCRIPT" and whole is not None:
                requests = (whole, *asked[1:])
            elif to is not None and redirections < _REDIRECTIONS:
                endpoint, redirections, is_guest = to, redirections + 1, refusal.code == "ASK"
            elif to is not None or refusal.code in LATER:
                if self._runtime.now() + pause >= until:
                    raise final(refusal, key)
                await self.pause(pause)
                if to is not None or refusal.code in ELSEWHERE:
                    self._topology.forget(endpoint)
                pause, redirections, is_guest = min(pause * 2, LONGEST_PAUSE), 0, False
                endpoint = await self._find(key, until)
            else:
                raise final(refusal, key)
            before = (ASKING,) if is_guest else ()  # ASKING is valid for one request, so it precedes every copy
            try:
                replies = (await self._exchange(endpoint, (*before, *requests), until))[len(before) :]
            except StoreUnavailable:
                if refusal.code not in LATER or self._runtime.now() < until:
                    raise
                raise final(refusal, key) from None  # it says more than a timeout
            if not isinstance(replies[0], Refusal):
                return replies
            refusal = replies[0]

    def _redirected(self, key: bytes, asked: Endpoint, refusal: Refusal) -> Endpoint | None:
        if refusal.code not in REDIRECTIONS or (to := refusal.endpoint()) is None:
            return None
        endpoint = self._topology.reached(to, asked)
        if refusal.code == "MOVED":
            self._topology.moved(key, endpoint)
        return endpoint
