"""A client: one store, one keeper, the holds of one process.

Making one does no I/O; the first use opens the store, once, whoever comes at the same time. After a fork the child
holds nothing, is another client to the store, and opens anew. Closing marks every hold lost, gives it back and wakes
whoever waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dibs.core import names
from dibs.core.cells import Cells
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE, RELEASE_PATIENCE, rest
from dibs.core.grant import HELD, LOST, Grantor, KeeperPort
from dibs.core.holds import Book, Hold
from dibs.core.keeper import Keeper
from dibs.core.line import DDL, LOOK, QUORUM, Encloses, Enclosing, InTables, Me, Quorum, Replaced, Store
from dibs.core.runtime import Runtime
from dibs.core.waiting import LineGrantor
from dibs.errors import Closed, DibsError, NotHeld, StoreError, StoreUnavailable, Unsupported
from dibs.info import Finding, LockInfo, show_command, write_about

if TYPE_CHECKING:
    from dibs.core.quorum import QuorumGrantor

E = TypeVar("E", bound=DibsError)
T = TypeVar("T")
_ABOUTS = 1024
_EXIT_PATIENCE = 1.0
_LOOK_OUT = 5.0
"""How long one waits for a change before one looks, whatever was heard."""


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
    ) -> None:
        self.store = store
        self.runtime = runtime
        self.now = runtime.now
        self._bind = runtime.bind
        self.lease = lease
        self.owner = owner
        self.info = info
        self.prefix = names.prefix_of(namespace)
        self.retry = retry
        self.login, self.host, self.pid = identity
        self.shown = store.shown + note
        self.closed = False
        self._abouts: dict[tuple[str, str], str] = {}
        self._begin()

    def _begin(self) -> None:
        self.me = Me(self.runtime.fresh_id(), self.runtime.inbox(), self.lease, self._news)
        self.mutex = self.runtime.mutex()
        """Who shares a grant, and who is its last hold; never held over an await."""
        self.keeper = Keeper(self.runtime, self.me, self._open_for_keeper, self.mutex)
        self.book = Book(self)
        self.opened: Grantor
        """The way to the store, once it is ready."""
        self._is_open = False
        self._cells: Cells | None = None
        self._encloses: Encloses | None = None
        self._watching: dict[bytes, None] = {}
        """The keys of those who wait for a change and have no claim."""
        self._gate = self.runtime.gate()

    def is_ready(self) -> bool:
        """At every entry: right loop, not closed; False: `open` is to be awaited."""
        if self._bind is not None:
            self._bind()
        if self.closed:
            self.check_open()
        return self._is_open

    async def open(self) -> None:
        await self._gate.once(lambda: self._is_open or None, self._open)

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
        if self.closed:
            raise Closed("this client was closed", store=self.shown, step="connect again")

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

    def acquired_at(self, hold: Hold) -> datetime:
        return datetime.now(UTC) - timedelta(seconds=self.now() - hold.began)

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
            raise self.error(NotHeld, name, f"no holder has token {token} any more", info=info, step=show_command(name))

    def seen(self, error: DibsError, name: str | None) -> DibsError:
        """An error of the store, with the names filled in; a store that is not the old one has lost every hold."""
        if isinstance(error, StoreError):
            self.keeper.heard(error)
        return error.about(name, self.shown)

    def describe(self) -> str:
        state = "closed" if self.closed else f"{len(self.keeper.renewing)} held or asked for"
        return f"{self.shown}: {state}"

    async def close(self) -> None:
        if self.closed:
            return
        if self._is_open and self._bind is not None:
            self._bind()
        self.closed = True
        for grant in list(self.keeper.renewing.values()):
            if grant.state is HELD:
                self.keeper.lose(grant)
            elif (claim := grant.claim) is not None:
                self.me.inbox.deliver(claim.id, LOOK.value)
                self.keeper.abandon(grant)
                self.me.inbox.expect(claim.id)  # who is just looking, and will wait again, is to find it too
                self.me.inbox.deliver(claim.id, LOOK.value)
        for key in list(self._watching):
            self.me.inbox.deliver(key, LOOK.value)
        if self._is_open:
            await self.keeper.when_idle(self.runtime).wait(self.now() + RELEASE_PATIENCE)
            self._shut()

    async def leave_at_exit(self) -> None:
        """Give back the holds of threads that cannot use them any more; those of running threads end by lease."""
        if self.closed or not self._is_open:
            return
        for grant in list(self.keeper.renewing.values()):
            if all(self.runtime.is_through(hold.taker) for hold in grant.holds):
                self.keeper.lose(grant)
        await self.keeper.when_idle(self.runtime.blocking()).wait(self.now() + _EXIT_PATIENCE)
        if not self.keeper.renewing:
            self._shut()

    def before_fork(self) -> None:
        self.store.before_fork()

    def after_fork(self, child: bool, pid: int) -> None:
        self.store.after_fork(child)
        if child:
            for grant in list(self.keeper.renewing.values()):
                grant.state = LOST
            self.keeper.renewing.clear()
            self.pid = pid
            self._abouts.clear()
            self.runtime.after_fork()
            self._begin()

    def _news(self, claim_id: bytes) -> None:
        self.keeper.look_at(claim_id)

    def _shut(self) -> None:
        self.keeper.stop()
        self.opened.close()
        for opened in (self._cells, self._encloses):
            if opened is not None:
                opened.close()
        self.me.inbox.unlisten()
        self.store.close()
        self.runtime.close()

    async def _open(self) -> bool:
        self.opened = self._grantor(self.runtime)
        self._is_open = True
        return True

    async def _open_cells(self) -> Cells:
        self._cells = self.store.open_cells(self.runtime, self.me)
        return self._cells

    async def _open_within(self) -> Encloses:
        self._encloses = cast("Enclosing", self.store).open_within(self.runtime, self.me)
        return self._encloses

    def _open_for_keeper(self) -> KeeperPort:
        return self._grantor(self.runtime.blocking())

    def _grantor(self, runtime: Runtime) -> LineGrantor | QuorumGrantor:
        if QUORUM in self.store.capabilities:
            from dibs.core.quorum import QuorumGrantor  # noqa: PLC0415  (most stores are one)

            return QuorumGrantor(cast("Quorum", self.store), runtime, self.me, self.keeper, self.retry, self)
        line = self.store.open(runtime, self.me)
        return LineGrantor(line, runtime, self.me, self.keeper, self.retry, self)

    @staticmethod
    def _named(info: LockInfo, name: str) -> LockInfo:
        return LockInfo(name=name, kind=info.kind, capacity=info.capacity, holders=info.holders, waiters=info.waiters)
