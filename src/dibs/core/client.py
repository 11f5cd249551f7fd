"""A client: one store, one watchdog, the holds of one process.

Making a client does no I/O; the first use opens the store, exactly once. After a fork the child holds nothing, is a new
client to the store, and opens it again. Closing marks every hold lost, gives it back and wakes all waiters.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

from dibs.core import names
from dibs.core.cells import Cells
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE, RELEASE_PATIENCE, rest, seconds
from dibs.core.grantor import Grantor
from dibs.core.grants import HELD, LOST
from dibs.core.latches import KeepsLatches, Latches
from dibs.core.log import fields, log, log_debug, wants_debug
from dibs.core.loss import CLOSED, EXITED, FORKED
from dibs.core.queue import (  # fmt: skip
    DDL,
    FOREIGN,
    LEASES,
    LOOK,
    ClientIdentity,
    Encloses,
    Enclosing,
    InTables,
    NamesHolders,
    Replaced,
    Store,
)
from dibs.core.registry import HoldRegistry
from dibs.core.reporter import Reporter
from dibs.core.runtime import Event, Runtime
from dibs.core.watchdog import Watchdog
from dibs.errors import DibsError, NotHeld, StoreError, StoreUnavailable, Unsupported, public
from dibs.events import Observer
from dibs.info import Finding, LockInfo, printable, show_command, write_description

E = TypeVar("E", bound=DibsError)
T = TypeVar("T")
_DESCRIPTIONS = 1024
_LEVELS = ("promise", "note", "danger")
_UNREACHED = "check that the store runs, and that this machine can reach it"
_CLOSING_ROUND_TRIPS = 10
_CROWD = 20
_SNAPSHOT_SHARE, _SNAPSHOT_AGE = 10.0, 0.25
"""A snapshot of a long queue is shared for ten times as long as it took: snapshots take at most a tenth of the time."""
_NOTICE_WAIT = 5.0
"""How long to wait for a change notice before polling."""
MakeGrantor = Callable[[Any, Runtime, ClientIdentity, HoldRegistry, float], Grantor]
"""Called with the store, the runtime, the identity of the client, the registry, and the `retry` seconds."""


class _Snapshot:
    """A snapshot of a queue that several callers share."""

    __slots__ = ("done", "info", "until")

    def __init__(self, done: Event, until: float) -> None:
        self.done = done
        self.info: LockInfo | None = None
        self.until = until
        """Until when other callers share it. It bounds their wait if the first caller was interrupted."""


class Client:
    """The state that all locks of one `connect()` share."""

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
        observer: Observer | None = None,
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
        """The command that shows a lock from outside this process; None: there is none."""
        self._make_grantor = make_grantor
        self.reporter = Reporter(self.shown, store.backend, runtime.now, observer)
        self._descriptions: dict[tuple[str, str], str] = {}
        self._begin(closed=False)

    def _begin(self, *, closed: bool) -> None:
        self.me = ClientIdentity(self.runtime.fresh_id(), self.runtime.inbox(), self.lease, self._news)
        mutex = self.runtime.mutex()
        self.registry = HoldRegistry(self.runtime, self.shown, self.reporter, mutex)
        self.registry.closed = closed
        self.watchdog = self.registry.watchdog = Watchdog(
            self.runtime, self.me, self._open_for_watchdog, self.reporter, mutex,
            claims_expire=LEASES in self.store.capabilities,
        )  # fmt: skip
        self._cells: Cells | None = None
        self._encloses: Encloses | None = None
        self._latches: Latches | None = None
        self._watching: dict[bytes, None] = {}
        """The inbox keys of callers that wait for a change without a claim."""
        self._snapshots: dict[str, _Snapshot] = {}
        """By name: the snapshot that timed-out callers share."""
        self._gate = self.runtime.gate()

    @property
    def closed(self) -> bool:
        return self.registry.closed

    @property
    def opened(self) -> Grantor:
        """The way to the store; call it only after `ready`."""
        return cast("Grantor", self.registry.grantor)

    async def ready(self) -> None:
        """Check the event loop and that the client is not closed; open the store on first use."""
        if self.bind is not None:
            self.bind()
        self.registry.check_open()
        if self.registry.grantor is None:
            await self._gate.once(lambda: self.registry.grantor, self._open)

    async def cells(self) -> Cells:
        """The way to the values of the shared primitives, opened on first use."""
        await self.ready()
        return self._cells if self._cells is not None else await self._gate.once(lambda: self._cells, self._open_cells)

    async def latches(self) -> Latches:
        """The way to the latches of a store that keeps them itself, opened on first use."""
        await self.ready()
        return await self._gate.once(lambda: self._latches, self._open_latches)

    async def encloses(self) -> Encloses:
        """The way into transactions of the caller, opened on first use."""
        await self.ready()
        return await self._gate.once(lambda: self._encloses, self._open_within)

    async def await_notice(self, name: str, watch: Callable[[bytes, float], Awaitable[None]], until: float) -> None:
        """Wait a limited time for a change notice from the store. `close` ends the wait."""
        key = self.begin_watch()
        try:
            await watch(key, min(until, self.now() + max(self.retry, _NOTICE_WAIT)))
            self.registry.check_open()
        except StoreUnavailable as error:
            if isinstance(error, Replaced):
                raise self.completed(error, name) from None
            # The caller polls next. Pause first: if only watching fails, it would poll in a tight loop.
            await self.runtime.sleep(max(min(self.runtime.jitter(LONGEST_PAUSE), until - self.now()), 0.0))
        except DibsError as error:
            raise self.completed(error, name) from None
        finally:
            self.end_watch(key)

    def begin_watch(self) -> bytes:
        """A key of the inbox for a caller that waits without a claim. `close` wakes it."""
        key = self.runtime.fresh_id()
        self.me.inbox.expect(key)
        self._watching[key] = None
        if self.closed:
            self.end_watch(key)
            self.registry.check_open()
        return key

    def end_watch(self, key: bytes) -> None:
        self.me.inbox.forget(key)
        self._watching.pop(key, None)

    async def ask(
        self, name: str | None, question: Callable[[Grantor, float], Awaitable[T]], patience: float | None = None
    ) -> T:
        """Ask the store, and retry for `patience` seconds, by default the client's `retry`."""
        await self.ready()
        until = self.now() + (self.retry if patience is None else patience)
        return await self.patiently(name, lambda: question(self.opened, until), until)

    async def patiently(self, name: str | None, ask: Callable[[], Awaitable[T]], until: float) -> T:
        """Call `ask`, which must be idempotent, and retry until then if the store does not answer."""
        pause = FIRST_PAUSE
        while True:
            try:
                found = await ask()
            except StoreUnavailable as error:
                left = until - self.now()
                if isinstance(error, Replaced) or pause >= left:
                    raise self.completed(error, name) from None
            except DibsError as error:
                raise self.completed(error, name) from None
            else:
                self.reporter.answered()
                return found
            await self.runtime.sleep(rest(pause, self.runtime.jitter(pause), left))
            pause = min(pause * 2, LONGEST_PAUSE)
            self.registry.check_open()

    def require(self, capability: str, what: str) -> None:
        """Raise Unsupported when the object is made, not when it is first used."""
        if capability not in self.store.capabilities:
            raise Unsupported(f"this store has no {what}", store=self.shown, step="use another store for it")

    def error(self, kind: type[E], name: str | None, what: str, **more: Any) -> E:
        return kind(what, name=name, store=self.shown, **more)

    def place(self, name: str) -> str:
        """A name and its store, for texts."""
        return f'"{name}" on {self.shown}'

    def label(self, owner: str | None) -> str:
        """The name of an owner that others see; `owner` is the option of the lock."""
        owner = owner if owner is not None else self.owner
        return self.login if owner is None or owner == "client" else owner

    def description(self, label: str, info: Mapping[str, Any] | None) -> str:
        """The description that others see of a claim of this thread or task; cached without `info`."""
        name = self.runtime.caller_name()
        if info:
            return write_description(label, self.host, self.pid, name, {**self.info, **info})
        text = self._descriptions.get((label, name))
        if text is None:
            if len(self._descriptions) >= _DESCRIPTIONS:
                self._descriptions.clear()
            text = self._descriptions[label, name] = write_description(label, self.host, self.pid, name, self.info)
        return text

    def is_me(self, host: str, pid: int) -> bool:
        return (host, pid) == (self.host, self.pid)

    async def identity(self) -> str:
        """The id kept in the store. Not cached: the store may have been replaced."""
        return await self.ask(None, lambda grantor, until: grantor.identity(until))

    async def ping(self, timeout: object) -> float:
        """Seconds until the store answered, with the time to connect."""
        began, patience = self.now(), seconds(timeout, "timeout")
        await self.ask(None, lambda grantor, until: grantor.ping(until), patience)
        return self.now() - began

    async def doctor(self) -> list[Finding]:
        """The findings of the store, dangers last; the first names the store and its components."""
        said = await self.ask(None, lambda grantor, until: grantor.doctor(until))
        made_of = [finding.what for finding in said if finding.level == "about"]
        found = sorted((one for one in said if one.level in _LEVELS), key=lambda one: _LEVELS.index(one.level))
        return [Finding("about", ", ".join([self.shown, *made_of])), *found]

    def ddl(self) -> str:
        """The statements that create the tables of the store; empty if it needs none."""
        return cast("InTables", self.store).ddl() if DDL in self.store.capabilities else ""

    async def inspect(self, name: str) -> LockInfo:
        return await self.look(names.check(name), self.prefix + name)

    async def look(self, name: str, encoded: str, patience: float | None = None) -> LockInfo:
        found = await self.ask(name, lambda grantor, until: grantor.inspect(encoded, until), patience)
        return found._replace(name=name)

    async def shared_snapshot(self, name: str, encoded: str, patience: float) -> LockInfo | None:
        """The queue, for the error of a caller that timed out; None: the store did not answer.

        Callers that time out at the same time share one snapshot. A snapshot of a long queue also serves callers that
        time out shortly after: n snapshots of n claims each would cost more than all the locking.
        """
        began = self.now()
        snapshot = self._snapshots.get(encoded)
        if snapshot is not None and began < snapshot.until:
            await snapshot.done.wait(began + patience)
            return snapshot.info
        snapshot = self._snapshots[encoded] = _Snapshot(self.runtime.event(), began + patience)
        try:
            snapshot.info = await self.look(name, encoded, patience)
        except StoreError:
            pass
        finally:
            if snapshot.info is not None and len(snapshot.info.waiters) >= _CROWD:
                snapshot.until = self.now() + min(_SNAPSHOT_SHARE * (self.now() - began), _SNAPSHOT_AGE)
            elif self._snapshots.get(encoded) is snapshot:
                del self._snapshots[encoded]
            snapshot.done.set()
        return snapshot.info

    async def page(self, prefix: str, after: str) -> tuple[list[LockInfo], str]:
        """A page of busy queues, and the name after which the next page starts; `""` is the end."""
        found = await self.ask(None, lambda grantor, until: grantor.page(self.prefix + prefix, after, until))
        start = len(self.prefix)
        own = [info._replace(name=info.name[start:]) for info in found if info.holders or info.waiters]
        end = max((info.name for info in found), default="")
        return own, end if end > after else ""  # a damaged store must not make the caller loop for ever

    async def break_(self, name: str, token: int | None, holder: str | None = None) -> None:
        """Remove the holder with this token; in a FOREIGN store, the holder with this id."""
        names.check(name)
        by_id = FOREIGN in self.store.capabilities
        if (token if by_id else holder) is not None:
            named = "holder=, the owner that inspect shows" if by_id else "token="
            raise self.error(Unsupported, name, f"a holder is named by {named}", step=self.show_step(name))
        if by_id and not isinstance(holder, str):
            raise TypeError(f"holder must be a str, not {holder!r}")
        if not by_id and (isinstance(token, bool) or not isinstance(token, int)):
            raise TypeError(f"token must be an int, not {token!r}")
        await self.ready()
        encoded, until = self.prefix + name, self.now() + self.retry
        try:
            if holder is not None:
                found = await cast("NamesHolders", self.opened).evict_holder(encoded, holder, until)
            else:
                found = await self.opened.evict(encoded, cast("int", token), until)
        except DibsError as error:
            raise self.completed(error, name) from None
        self.reporter.answered()
        if not found:
            info = await self.inspect(name)
            raise self.error(
                NotHeld, name, f"no holder has {_named(token, holder)} any more", info=info, step=self.show_step(name)
            )
        self.reporter.broken(name, token or 0, _named(token, holder))

    def completed(self, error: DibsError, name: str | None) -> DibsError:
        """Complete an error for the caller; tell the watchdog, because a replaced store has lost every hold."""
        if isinstance(error, StoreError):
            self.watchdog.heard(error)
        if isinstance(error, StoreUnavailable):
            error.step = error.step or _UNREACHED
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
            claim_id = grant.claim.id
            if grant.state is HELD:
                self.watchdog.lose(grant, CLOSED)
            else:
                self.me.inbox.deliver(claim_id, LOOK.value)
                self.watchdog.abandon(grant)
                self.me.inbox.expect(claim_id)  # a waiter between two waits must find the message, too
                self.me.inbox.deliver(claim_id, LOOK.value)
        for key in list(self._watching):
            self.me.inbox.deliver(key, LOOK.value)
        if self.registry.grantor is not None:
            patience = max(RELEASE_PATIENCE, _CLOSING_ROUND_TRIPS * self.watchdog.round_trip())
            if not await self.watchdog.give_backs.when_idle(self.runtime, self._spare()).wait(self.now() + patience):
                left = self.watchdog.give_backs.backlog()
                extra = fields("closed_early", store=self.shown, claims=left)
                log("store").warning(
                    "closed %s; claims not released, they end by lease: %d", self.shown, left, extra=extra
                )
            self._shut()

    def begin_exit(self) -> Event | None:
        """At interpreter exit: give back the holds of threads and tasks that have ended. Holds of running threads end
        by lease. The event is set when this is done."""
        if self.closed or self.registry.grantor is None:
            return None
        self.watchdog.give_backs.is_closing = True
        for grant in list(self.watchdog.renewing.values()):
            if all(self.runtime.is_through(hold.caller) for hold in grant.holds):
                self.watchdog.lose(grant, EXITED)
        return self.watchdog.give_backs.when_idle(self.runtime.blocking(), self._spare())

    def _spare(self) -> Grantor | None:
        """A connected way to the store: that of the callers, unless it belongs to an event loop."""
        return self.opened if self.runtime.blocking() is self.runtime else self.watchdog.grantor

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
                for hold in grant.holds:
                    hold.reported = False  # the parent reports its end
            self.watchdog.renewing.clear()
            self.pid = pid
            self._descriptions.clear()
            self.runtime.after_fork()
            self._begin(closed=self.closed)

    def _news(self, claim_id: bytes) -> None:
        self.watchdog.look_at(claim_id)

    def _shut(self) -> None:
        self.watchdog.stop()
        self.opened.close()
        for opened in (self._cells, self._latches, self._encloses):
            if opened is not None:
                opened.close()
        self.me.inbox.unlisten()
        self.store.close()
        self.runtime.close()

    async def _open(self) -> Grantor:
        if wants_debug():
            self.reporter.add(log_debug, log_debug)
        self.registry.grantor = grantor = self._grantor(self.runtime)
        return grantor

    async def _open_cells(self) -> Cells:
        self._cells = self.store.open_cells(self.runtime, self.me)
        return self._cells

    async def _open_latches(self) -> Latches:
        self._latches = cast("KeepsLatches", self.store).open_latches(self.runtime, self.me)
        return self._latches

    async def _open_within(self) -> Encloses:
        self._encloses = cast("Enclosing", self.store).open_within(self.runtime, self.me)
        return self._encloses

    def _open_for_watchdog(self) -> Grantor:
        return self._grantor(self.runtime.blocking())

    def _grantor(self, runtime: Runtime) -> Grantor:
        return self._make_grantor(self.store, runtime, self.me, self.registry, self.retry)


def _named(token: int | None, holder: str | None) -> str:
    return f"id {printable(holder)}" if token is None else f"token {token}"
