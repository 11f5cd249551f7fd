"""Requests to the server that has a key, whatever it takes to find it: seams 2 and 3 go through this.

Every request ends done, not done or unknown. What a server refused is not done, and is asked again here until the
caller's instant (see errors.py). A connection that breaks leaves the outcome unknown: that is StoreUnavailable, and
whoever asked must know of it.
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
"""How long they are waited for; shorter than an answer is, and half of what is left at most: the answer must come."""
_REDIRECTIONS = 5
"""So many servers may send us on to each other before we pause."""


class Transport(Protocol):
    """servers.py for threads, aio_connection.py for event loops. `until` may have passed: a reply that has come by then
    is still read."""

    def pool_now(self, endpoint: Endpoint) -> Any:
        """The pool of connections to that server; None: there is none yet."""

    async def exchange(self, endpoint: Endpoint, requests: Sequence[Request], until: float) -> list[Reply]: ...

    async def exchange_all(
        self, parts: Mapping[Endpoint, Sequence[Request]], until: float
    ) -> dict[Endpoint, list[Reply] | StoreUnavailable]:
        """The same to several servers at once."""

    async def connect(self, endpoint: Endpoint, until: float) -> None:
        """Have a connection to that server ready."""

    async def learn(self, until: float) -> None:
        """Find out anew which server has what."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close what is open, and touch nothing else of the parent's."""


class RedisExecutor(Executor[ScriptCall, list[Any]]):
    def __init__(
        self, transport: Transport, topology: Topology, runtime: Runtime, replicas: int, round_trip: Callable[[], float]
    ) -> None:
        """`replicas`: what is asked to be kept is kept once so many of them have it. `round_trip`: to the slowest of
        the servers."""
        super().__init__(runtime)
        self._transport = transport
        self._topology = topology
        self.round_trip = round_trip
        self.replicas = replicas
        self.failover = topology.failover

    def pool_now(self, key: bytes) -> Any:
        """The pool of the server that has the key. None: that is to be found out, or a reply alone does not count."""
        if self.replicas or self.failover is not None:
            return None
        endpoint = self._topology.locate(key)
        return None if endpoint is None else self._transport.pool_now(endpoint)

    async def ask(self, call: ScriptCall, until: float) -> list[Any]:
        """What a script answers; asked again if a connection broke: for what may be done twice."""
        return (await self.ask_often(call, until))[0]

    async def ask_once(self, call: ScriptCall, until: float) -> list[Any]:
        answer: list[Any] = (await self._ask(call, (call,), until))[0]
        return answer

    async def connect(self, until: float) -> None:
        """Have a connection to each primary that is known; where none is, learn of them first."""
        for endpoint in await self.primaries(until):
            await self._transport.connect(endpoint, until)

    async def ask_replicated(self, call: ScriptCall, until: float) -> tuple[list[Any], bool]:
        """The same, and whether what it changed is kept: by enough replicas, asked on the same connection, and by a
        server that is still the primary."""
        if self.failover is None and not self.replicas:  # nearly always
            return (await self._ask(call, (call,), until))[0], True
        term = await self.term(until)
        replies = await self._ask(call, (call, *self._wait(until)), until)
        is_replicated = not self.replicas or self._is_enough(replies[1])
        return replies[0], is_replicated and await self._counts(term, until)

    async def term(self, until: float) -> Term | None:
        """Where sentinels choose the primary: the term that a request goes to."""
        failover = self.failover
        if failover is not None and (failover.term is None or not self._topology.all()):
            await self._transport.learn(until)
        return None if failover is None else failover.term

    async def _counts(self, term: Term | None, until: float) -> bool:
        """Whether what was answered in that term does: see failover.py."""
        failover = self.failover
        if failover is None or failover.confirms(term):
            return True
        try:
            await self._transport.learn(until)
        except StoreUnavailable:
            return False
        return failover.confirms(term)

    async def _ask(self, call: ScriptCall, requests: tuple[Request, ...], until: float) -> list[Reply]:
        endpoint = self._topology.locate(call.key)
        if endpoint is None:
            endpoint = await self._find(call.key, until)
        try:
            replies = await self._transport.exchange(endpoint, requests, until)
        except StoreUnavailable:
            self._topology.forget(endpoint)
            raise
        if is_answer(call, replies[0]):
            return replies
        return await self._insist_on(call, requests[1:], endpoint, replies[0], until)

    async def ask_all(self, calls: Sequence[ScriptCall], until: float) -> list[Any]:
        """Many scripts, each by itself: what became of one says nothing about the others."""
        return await self._ask_all(calls, (), until)

    async def ask_all_replicated(self, calls: Sequence[ScriptCall], until: float) -> list[Any]:
        """The same; what too few replicas have counts for nothing. Asked again while nobody answers, as by `ask`."""
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
        return found if await self._counts(term, until) else [self.unkept()] * len(calls)

    async def _ask_all(self, calls: Sequence[ScriptCall], more: tuple[Request, ...], until: float) -> list[Any]:
        """Whose server is known is asked first: finding out about the others may take all the time there is."""
        found: dict[int, Any] = {}
        lost = []
        parts: dict[Endpoint, list[ScriptCall]] = {}
        for call in calls:
            endpoint = self._topology.locate(call.key)
            if endpoint is None:
                lost.append(call)
            else:
                parts.setdefault(endpoint, []).append(call)
        await self._ask_parts(parts, more, until, found)
        if lost:
            parts = {}
            try:
                for call in lost:
                    parts.setdefault(await self._find(call.key, until), []).append(call)
            except StoreUnavailable as error:
                found.update((id(call), error) for call in lost)
            else:
                await self._ask_parts(parts, more, until, found)
        return [found[id(call)] for call in calls]

    async def _ask_parts(
        self,
        parts: Mapping[Endpoint, list[ScriptCall]],
        more: tuple[Request, ...],
        until: float,
        found: dict[int, Any],
    ) -> None:
        asked = {endpoint: (*calls, *more) for endpoint, calls in parts.items()}
        for endpoint, replies in (await self._transport.exchange_all(asked, until)).items():
            if isinstance(replies, StoreUnavailable):
                self._topology.forget(endpoint)
                found.update((id(call), replies) for call in parts[endpoint])
                continue
            untaught: list[ScriptCall] = []
            for call, reply in zip(parts[endpoint], replies, strict=False):
                said: list[Reply] | StoreUnavailable = [reply, *replies[len(parts[endpoint]) :]]
                if not is_answer(call, reply):
                    if isinstance(reply, Refusal) and reply.code == "NOSCRIPT":
                        untaught.append(call)
                        if len(untaught) > 1:  # the first one teaches the server
                            continue
                    said = await self._again(call, more, endpoint, reply, until)
                found[id(call)] = self._kept(said)
            if len(untaught) > 1:
                await self._ask_parts({endpoint: untaught[1:]}, more, until, found)

    def _kept(self, said: list[Reply] | StoreUnavailable) -> Any:
        """Of an answer, and perhaps how many replicas have it."""
        if isinstance(said, StoreUnavailable):
            return said
        answer: list[Any] = said[0]
        return answer if len(said) == 1 or self._is_enough(said[1]) else self.unkept()

    def _wait(self, until: float) -> tuple[Request, ...]:
        if not self.replicas:
            return ()
        patience = min(_FOR_REPLICAS, (until - self._runtime.now()) / 2)
        return (Wait(self.replicas, patience),)

    def unkept(self) -> StoreUnavailable:
        if self.failover is not None and not self.failover.confirms(self.failover.term):
            return StoreUnavailable(
                "no majority of the sentinels confirms the primary", step="check that the sentinels run"
            )
        if not self.replicas:
            return StoreUnavailable("the primary changed meanwhile", step="try again")
        step = "check the replication of this server, or lower replicas="
        return StoreUnavailable(f"fewer than {self.replicas} replicas have it", step=step)

    def _is_enough(self, count: Reply) -> bool:
        if isinstance(count, Refusal) and count.code == "NOPERM":
            raise final(count, b"")
        return isinstance(count, int) and count >= self.replicas  # a server that is to follow another one counts none

    async def command(self, key: bytes, command: Command, until: float) -> Reply:
        """One of Redis's own, of the server that has the key."""
        endpoint = await self._find(key, until)
        (reply,) = await self._exchange(endpoint, (command,), until)
        if isinstance(reply, Refusal):
            (reply,) = await self._insist(key, (command,), None, endpoint, reply, until)
        return reply

    async def command_at(self, endpoint: Endpoint, command: Command, until: float) -> Reply:
        """The same of a certain server; a refusal is given and not raised."""
        return (await self._exchange(endpoint, (command,), until))[0]

    async def primaries(self, until: float) -> list[Endpoint]:
        """Every server that holds a part of the keys."""
        if not self._topology.all():
            await self._transport.learn(until)
        return self._topology.all()

    def close(self) -> None:
        self._transport.close()

    async def _exchange(self, endpoint: Endpoint, requests: Sequence[Request], until: float) -> list[Reply]:
        try:
            return await self._transport.exchange(endpoint, requests, until)
        except StoreUnavailable:
            self._topology.forget(endpoint)
            raise

    async def _find(self, key: bytes, until: float) -> Endpoint:
        endpoint = self._topology.locate(key)
        if endpoint is None:
            try:
                await self._transport.learn(until)
            except StoreUnavailable as error:
                raise Unsent(error.what, step=error.step) from error.__cause__
            endpoint = self._topology.locate(key)
        if endpoint is None:
            raise Unsent("no server has these keys now", step="check CLUSTER SLOTS")
        return endpoint

    async def _again(
        self, call: ScriptCall, more: tuple[Request, ...], endpoint: Endpoint, reply: Reply, until: float
    ) -> list[Reply] | StoreUnavailable:
        try:
            return await self._insist_on(call, more, endpoint, reply, until)
        except (StoreError, Mismatch) as error:
            return unavailable(error)

    async def _insist_on(
        self, call: ScriptCall, more: tuple[Request, ...], endpoint: Endpoint, reply: Reply, until: float
    ) -> list[Reply]:
        """A script whose first answer was none."""
        if not isinstance(reply, Refusal):
            raise strange()
        replies = await self._insist(call.key, (call, *more), call.whole(), endpoint, reply, until)
        if not is_answer(call, replies[0]):
            raise strange()
        return replies

    async def _insist(
        self,
        key: bytes,
        asked: tuple[Request, ...],
        whole: Request | None,
        endpoint: Endpoint,
        refusal: Refusal,
        until: float,
    ) -> list[Reply]:
        """Whatever it takes after a first refusal; `whole` is what teaches a server that does not know the script."""
        pause, redirections, is_guest = FIRST_PAUSE, 0, False
        while True:
            requests = asked
            to = self._redirected(key, endpoint, refusal)
            if refusal.code == "NOSCRIPT" and whole is not None:
                requests = (whole, *asked[1:])
            elif to is not None and redirections < _REDIRECTIONS:
                endpoint, redirections, is_guest = to, redirections + 1, refusal.code == "ASK"
            elif to is not None or refusal.code in LATER:
                await self._rest(refusal, key, pause, until)
                if to is not None or refusal.code in ELSEWHERE:
                    self._topology.forget(endpoint)
                pause, redirections, is_guest = min(pause * 2, LONGEST_PAUSE), 0, False
                endpoint = await self._find(key, until)
            else:
                raise final(refusal, key)
            before = (ASKING,) if is_guest else ()  # it is good for one question, also for one asked again
            try:
                replies = (await self._exchange(endpoint, (*before, *requests), until))[len(before) :]
            except StoreUnavailable:
                if refusal.code not in LATER or self._runtime.now() < until:
                    raise
                raise final(refusal, key) from None  # it says more than that the time was too short for this answer
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

    async def _rest(self, refusal: Refusal, key: bytes, pause: float, until: float) -> None:
        if self._runtime.now() + pause >= until:
            raise final(refusal, key)
        await self.pause(pause)


def is_answer(call: ScriptCall, reply: Reply) -> bool:
    return type(reply) is list or type(reply) is call.script.short
