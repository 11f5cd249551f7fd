"""A client: one store, one watchdog, the holds of one process.

Making one does no I/O; the first use opens the store, once, whoever comes at the same time. After a fork the child
holds nothing, is another client to the store, and opens anew. Closing marks every hold lost, gives it back and wakes
whoever waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from dibs.core import names
from dibs.core.cells import Cells
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE, RELEASE_PATIENCE, rest
from dibs.core.grants import HELD, LOST, WatchdogPort
from dibs.core.line import DDL, LEASES, LOOK, Encloses, Enclosing, InTables, Me, Replaced, Store
from dibs.core.log import log
from dibs.core.loss import CLOSED, EXITED, FORKED
from dibs.core.registry import Grantor, HoldRegistry
from dibs.core.runtime import Event, Runtime
from dibs.core.watchdog import Watchdog
from dibs.errors import DibsError, NotHeld, StoreError, StoreUnavailable, Unsupported, public
from dibs.info import Finding, LockInfo, show_command, write_about

E = TypeVar("E", bound=DibsError)
T = TypeVar("T")
_ABOUTS = 1024
_CLOSING_ROUND_TRIPS = 10
_CROWD = 20
_LOOK_SHARE, _LOOK_OLD = 10.0, 0.25
"""A look at a crowd is shared for ten times as long as it took, so that looking takes at most a tenth of the time."""
_LOOK_OUT = 5.0
"""How long one waits for a change before one looks, whatever was heard."""


class OpenedGrantor(Grantor, WatchdogPort, Protocol):
    """One way to the store, for callers or for a lane of the watchdog."""


MakeGrantor = Callable[[Any, Runtime, Me, HoldRegistry, float], OpenedGrantor]
"""Of the store, the runtime, who asks, the registry, and the seconds for which a silent store is asked again."""


class _Look:
    """A look at a queue that several callers share."""

    __slots__ = ("done", "info", "until")

    def __init__(self, done: Event, until: float) -> None:
        self.done = done
        self.info: LockInfo | None = None
        self.until = until
        """Until when others share it; one that was interrupted is not waited for again."""


class Client:
    """What locks of one `connect()` share."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        lease: float,
        owner: str | None,
        info: Mapping[str, Any],
        namespace: str,
        retry: float,
        identity: tuple[str, str, int],
        note: str,
        make_grantor: MakeGrantor,
        show_step: Callable[[str], str | None] = show_command,
    ) -> None:
        self.store = store
        self.runtime = runtime
        self.now = runtime.now
        self.bind = runtime.bind
        self.lease = lease
        self.owner = owner
        self.info = info
        self.prefix = names.prefix_of(namespace)
        self.retry = retry
        self.login, self.host, self.pid = identity
        self.shown = store.shown + note
        self.show_step = show_step
        """How to look at a lock of that name from outside; None: nobody can."""
        self._make_grantor = make_grantor
        self._abouts: dict[tuple[str, str], str] = {}
        self._begin()

    def _begin(self) -> None:
        self.me = Me(self.runtime.fresh_id(), self.runtime.inbox(), self.lease, self._news)
        mutex = self.runtime.mutex()
        self.registry = HoldRegistry(self.runtime, self.shown, mutex)
        self.watchdog = self.registry.watchdog = Watchdog(
            self.runtime, self.me, self._open_for_watchdog, mutex, claims_expire=LEASES in self.store.capabilities
        )
        self._cells: Cells | None = None
        self._encloses: Encloses | None = None
        self._watching: dict[bytes, None] = {}
        """The keys of those who wait for a change and have no claim."""
        self._looks: dict[str, _Look] = {}
        """By name: the look that callers who give up now share."""
        self._gate = self.runtime.gate()

    def is_ready(self) -> bool:
        """At every entry: right loop, not closed; False: `open` is to be awaited."""
        if self.bind is not None:
            self.bind()
        self.registry.check_open()
        return self.registry.grantor is not None

    @property
    def closed(self) -> bool:
        return self.registry.closed

    @property
    def opened(self) -> OpenedGrantor:
        """The way to the store, once `ready` was awaited."""
        return cast("OpenedGrantor", self.registry.grantor)

    async def open(self) -> None:
        await self._gate.once(lambda: self.registry.grantor, self._open)

    async def ready(self) -> None:
        if not self.is_ready():
            await self.open()

    async def cells(self) -> Cells:
        """The way to the values that nobody owns; opened when it is first needed."""
        if not self.is_ready():
            await self.open()
        return self._cells if self._cells is not None else await self._gate.once(lambda: self._cells, self._open_cells)

    async def encloses(self) -> Encloses:
        """The way into transactions of the caller's own; opened when it is first needed."""
        await self.ready()
        return await self._gate.once(lambda: self._encloses, self._open_within)

    async def look_out(self, name: str, watch: Callable[[bytes, float], Awaitable[None]], until: float) -> None:
        """Wait for a change that the store tells us under a key, for a while; closing the client ends it."""
        key = self.runtime.fresh_id()
        self.me.inbox.expect(key)
        self._watching[key] = None
        try:
            self.check_open()
            await watch(key, min(until, self.now() + max(self.retry, _LOOK_OUT)))
            self.check_open()
        except StoreUnavailable as error:
            if isinstance(error, Replaced):
                raise self.seen(error, name) from None
            # Whoever watches looks next, patiently; only not at once, if it is just watching that fails.
            await self.runtime.sleep(max(min(self.runtime.jitter(LONGEST_PAUSE), until - self.now()), 0.0))
        except DibsError as error:
            raise self.seen(error, name) from None
        finally:
            self.me.inbox.forget(key)
            self._watching.pop(key, None)

    async def patiently(self, name: str | None, ask: Callable[[], Awaitable[T]], until: float) -> T:
        """Ask a silent store again, until then: for what may as well happen twice."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await ask()
            except StoreUnavailable as error:
                left = until - self.now()
                if isinstance(error, Replaced) or pause >= left:
                    raise self.seen(error, name) from None
            except DibsError as error:
                raise self.seen(error, name) from None
            await self.runtime.sleep(rest(pause, self.runtime.jitter(pause), left))
            pause = min(pause * 2, LONGEST_PAUSE)
            self.check_open()

    def check_open(self) -> None:
        self.registry.check_open()

    def require(self, capability: str, what: str) -> None:
        """What a store cannot do is said when the lock is made."""
        if capability not in self.store.capabilities:
            raise Unsupported(f"this store has no {what}", store=self.shown, step="use another store for it")

    def error(self, kind: type[E], name: str | None, what: str, **more: Any) -> E:
        return kind(what, name=name, store=self.shown, **more)

    def place(self, name: str) -> str:
        """A name and where it is, as texts speak of it."""
        return f'"{name}" on {self.shown}'

    def about(self, label: str, info: Mapping[str, Any] | None) -> str:
        """What others are shown of a claim made here and now; the usual ones are made once."""
        name = self.runtime.taker_name()
        if info:
            return write_about(label, self.host, self.pid, name, {**self.info, **info})
        text = self._abouts.get((label, name))
        if text is None:
            if len(self._abouts) >= _ABOUTS:
                self._abouts.clear()
            text = self._abouts[label, name] = write_about(label, self.host, self.pid, name, self.info)
        return text

    def is_me(self, host: str, pid: int) -> bool:
        return (host, pid) == (self.host, self.pid)

    async def identity(self) -> str:
        """The id kept in the store; asked each time, as the store may be another one by now."""
        await self.ready()
        until = self.now() + self.retry
        return await self.patiently(None, lambda: self.opened.identity(until), until)

    async def doctor(self) -> list[Finding]:
        """What the store says of itself; which store that is stands first."""
        await self.ready()
        until = self.now() + self.retry
        said = await self.patiently(None, lambda: self.opened.doctor(until), until)
        made_of = [finding.what for finding in said if finding.level == "about"]
        return [
            Finding("about", ", ".join([self.shown, *made_of])),
            *(finding for finding in said if finding.level != "about"),
        ]

    def ddl(self) -> str:
        """The statements that make what the store needs; empty where it needs none."""
        return cast("InTables", self.store).ddl() if DDL in self.store.capabilities else ""

    async def inspect(self, name: str) -> LockInfo:
        return await self.look(names.check(name), self.prefix + name)

    async def look(self, name: str, encoded: str, patience: float | None = None) -> LockInfo:
        await self.ready()
        until = self.now() + (self.retry if patience is None else patience)
        return self._named(await self.patiently(name, lambda: self.opened.line(encoded, until), until), name)

    async def look_together(self, name: str, encoded: str, patience: float) -> LockInfo | None:
        """The queue, for a caller that gave up; None: the store did not say. Callers that give up at the same time
        share one look. Where they are a crowd it also serves those who give up soon after: n looks of n claims each
        would cost more than all the locking."""
        began = self.now()
        look = self._looks.get(encoded)
        if look is not None and began < look.until:
            await look.done.wait(began + patience)
            return look.info
        look = self._looks[encoded] = _Look(self.runtime.event(), began + patience)
        try:
            look.info = await self.look(name, encoded, patience)
        except StoreError:
            pass
        finally:
            if look.info is not None and len(look.info.waiters) >= _CROWD:
                look.until = self.now() + min(_LOOK_SHARE * (self.now() - began), _LOOK_OLD)
            elif self._looks.get(encoded) is look:
                del self._looks[encoded]
            look.done.set()
        return look.info

    async def page(self, prefix: str, after: str) -> tuple[list[LockInfo], str]:
        """A page of busy lines and the name to go on behind; an empty page is the end."""
        await self.ready()
        until = self.now() + self.retry
        found = await self.patiently(None, lambda: self.opened.lines(self.prefix + prefix, after, until), until)
        own = [self._named(info, info.name[len(self.prefix) :]) for info in found if info.holders or info.waiters]
        end = max((info.name for info in found), default="")
        return own, end if end > after else ""  # a damaged store may list them out of order, or in a circle

    async def break_(self, name: str, token: int) -> None:
        """Remove that holder, if it is still the one."""
        names.check(name)
        if isinstance(token, bool) or not isinstance(token, int):
            raise TypeError(f"token must be an int, not {token!r}")
        await self.ready()
        try:
            found = await self.opened.evict(self.prefix + name, token, self.now() + self.retry)
        except DibsError as error:
            raise self.seen(error, name) from None
        if not found:
            info = await self.inspect(name)
            raise self.error(
                NotHeld, name, f"no holder has token {token} any more", info=info, step=self.show_step(name)
            )

    def seen(self, error: DibsError, name: str | None) -> DibsError:
        """An error of the store, with the names filled in; a store that is not the old one has lost every hold."""
        if isinstance(error, StoreError):
            self.watchdog.heard(error)
        return public(error.about(name, self.shown))

    def describe(self) -> str:
        state = "closed" if self.closed else f"{len(self.watchdog.renewing)} held or asked for"
        return f"{self.shown}: {state}"

    async def close(self) -> None:
        if self.closed:
            return
        if self.registry.grantor is not None and self.bind is not None:
            self.bind()
        self.registry.closed = self.watchdog.give_backs.is_closing = True
        for grant in list(self.watchdog.renewing.values()):
            if grant.state is HELD:
                self.watchdog.lose(grant, CLOSED)
            elif (claim := grant.claim) is not None:
                self.me.inbox.deliver(claim.id, LOOK.value)
                self.watchdog.abandon(grant)
                self.me.inbox.expect(claim.id)  # who is just looking, and will wait again, is to find it too
                self.me.inbox.deliver(claim.id, LOOK.value)
        for key in list(self._watching):
            self.me.inbox.deliver(key, LOOK.value)
        if self.registry.grantor is not None:
            patience = max(RELEASE_PATIENCE, _CLOSING_ROUND_TRIPS * self.watchdog.round_trip())
            if not await self.watchdog.give_backs.when_idle(self.runtime, self._spare()).wait(self.now() + patience):
                left = self.watchdog.give_backs.backlog()
                log().warning("closed %s; claims not released, they end by lease: %d", self.shown, left)
            self._shut()

    def begin_exit(self) -> Event | None:
        """Give back the holds of threads that cannot use them any more; those of running threads end by lease. The
        event is set when that is done."""
        if self.closed or self.registry.grantor is None:
            return None
        self.watchdog.give_backs.is_closing = True
        for grant in list(self.watchdog.renewing.values()):
            if all(self.runtime.is_through(hold.taker) for hold in grant.holds):
                self.watchdog.lose(grant, EXITED)
        return self.watchdog.give_backs.when_idle(self.runtime.blocking(), self._spare())

    def _spare(self) -> WatchdogPort | None:
        """A way to the store that is connected: the callers' own, unless it belongs to an event loop."""
        return self.opened if self.runtime.blocking() is self.runtime else self.watchdog.port

    def end_exit(self) -> None:
        if not self.watchdog.renewing:
            self._shut()

    def before_fork(self) -> None:
        self.store.before_fork()

    def after_fork(self, child: bool, pid: int) -> None:
        self.store.after_fork(child)
        if child:
            for grant in list(self.watchdog.renewing.values()):
                grant.state, grant.loss = LOST, FORKED
            self.watchdog.renewing.clear()
            self.pid = pid
            self._abouts.clear()
            self.runtime.after_fork()
            self._begin()

    def _news(self, claim_id: bytes) -> None:
        self.watchdog.look_at(claim_id)

    def _shut(self) -> None:
        self.watchdog.stop()
        self.opened.close()
        for opened in (self._cells, self._encloses):
            if opened is not None:
                opened.close()
        self.me.inbox.unlisten()
        self.store.close()
        self.runtime.close()

    async def _open(self) -> Grantor:
        self.registry.grantor = grantor = self._grantor(self.runtime)
        return grantor

    async def _open_cells(self) -> Cells:
        self._cells = self.store.open_cells(self.runtime, self.me)
        return self._cells

    async def _open_within(self) -> Encloses:
        self._encloses = cast("Enclosing", self.store).open_within(self.runtime, self.me)
        return self._encloses

    def _open_for_watchdog(self) -> WatchdogPort:
        return self._grantor(self.runtime.blocking())

    def _grantor(self, runtime: Runtime) -> OpenedGrantor:
        return self._make_grantor(self.store, runtime, self.me, self.registry, self.retry)

    @staticmethod
    def _named(info: LockInfo, name: str) -> LockInfo:
        return LockInfo(name=name, kind=info.kind, capacity=info.capacity, holders=info.holders, waiters=info.waiters)
