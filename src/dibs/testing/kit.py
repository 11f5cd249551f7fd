"""The test kit for applications: real clients of a memory store, with a clock and faults that the test controls.

Between `begin` and `end` of a `Kit`, `DIBS_URL` is `memory://`. Every client that the test or the code under test then
connects to a memory store is on the kit's stage: it uses the test's clock, its watchdog can be paused, its replies can
be lost, and two holders at once are detected. Clients that were connected before share the store, on the real clock.

Use it through the fixtures `dibs_client` and `dibs_aio_client`: docs/testing-your-code.md.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import Any, cast

import dibs.aio
import dibs.aio.client
import dibs.blocking.client
from dibs._shared import make_client
from dibs.backends.memory import World, _worlds
from dibs.core.client import Client
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Options
from dibs.core.registry import HoldRegistry
from dibs.core.runtime import Runtime
from dibs.runtime.threads import ThreadRuntime, step
from dibs.testing import faults
from dibs.testing.faults import Faults, LostReply, Usurping, world_of
from dibs.testing.overlap import Overlap, Record, WatchedRegistry
from dibs.testing.stage import Clock, Pause, Stage

URL = "memory://"


class Kit:
    """The stage, the faults and the record of overlaps of one test."""

    def __init__(self, stage: Stage | None = None) -> None:
        self.stage = stage or Stage()
        self.faults = Faults(self.stage)
        self.record = Record()
        self._thieves: dict[tuple[str, str], Client] = {}
        self._stolen: list[dibs.Hold] = []
        """Stolen holds that the test may drop. We keep them: a dropped hold gives a warning."""
        self._worlds: dict[int, World] = {}
        self._undo = ExitStack()

    def begin(self) -> None:
        """Empty the store, and direct `connect()` to this kit."""
        self._use(_worlds.setdefault("", World("")))
        self._undo.callback(_restore_variable, "DIBS_URL", os.environ.get("DIBS_URL"))
        os.environ["DIBS_URL"] = URL
        for api in (dibs.blocking.client, dibs.aio.client):
            self._undo.callback(setattr, api, "make_client", make_client)
            setattr(api, "make_client", self._make_client)  # noqa: B010  (for mypy an imported name is a constant)

    def end(self) -> None:
        """Close every client that the test left open, and empty the store."""
        self.stage.resume_all()
        self._undo.close()
        for client in self.stage.clients:
            with suppress(dibs.DibsError):  # the store is emptied anyway
                shut(client)
        for world in self._worlds.values():
            world.reset()

    def client(self, url: str = URL, **options: Any) -> KitClient:
        return KitClient(self._on_stage(dibs.connect(url, **options)._core), self)

    def aio_client(self, url: str = URL, **options: Any) -> KitAioClient:
        return KitAioClient(self._on_stage(dibs.aio.connect(url, **options)._core), self)

    def _on_stage(self, client: Client) -> Client:
        if client not in self.stage.clients:
            raise ValueError(f"{client.shown} is no memory store: connect to it as the code under test does")
        return client

    def pause(self, clients: tuple[object, ...]) -> Pause:
        wrong = [client for client in clients if not isinstance(client, dibs.Client | dibs.aio.Client)]
        if wrong:
            raise TypeError(f"pause_watchdog takes clients, not {wrong[0]!r}")
        cores = [client._core for client in clients if isinstance(client, dibs.Client | dibs.aio.Client)]
        if any(core not in self.stage.clients for core in cores):
            raise ValueError("pause_watchdog takes clients that were connected to a memory store during this test")
        return self.stage.pause([core.watchdog for core in cores] or None)

    def steal(self, client: Client, name: str, token: int | None) -> dibs.Hold:
        info, victims = faults.holders(client, name, token)
        thief = self._thief(client)
        usurping = cast("Usurping", thief.store)
        usurping.victims = [victim.token for victim in victims]
        weight = sum(victim.weight for victim in victims)
        lock = Lock(thief, name, Options.checked(), kind=info.kind, capacity=info.capacity, weight=weight)
        core = lock.begin(0)
        hold = dibs.Hold(core, lock)
        step(lock.acquire(core))
        self._stolen.append(hold)
        return hold

    def _make_client(self, runtime: Runtime, url: object, **options: Any) -> Client:
        """Replaces `make_client` in `connect()`."""
        address = url if url is not None else os.environ.get("DIBS_URL")
        if not (isinstance(address, str) and address.lower().startswith(URL)):
            return make_client(runtime, url, **options)
        client = make_client(self.stage.runtime(runtime), url, **options)
        self._use(world_of(client))
        self.stage.clients.append(client)
        client.registry = cast("HoldRegistry", WatchedRegistry(client, self.stage, self.record))
        self.faults.wrap(client)
        return client

    def _thief(self, client: Client) -> Client:
        """The client that steals locks. It is not under test: never paused, never faulty, not checked for overlaps."""
        place = (client.store.shown, client.prefix)
        if place not in self._thieves:
            thief = make_client(
                self.stage.runtime(ThreadRuntime(), may_pause=False), client.store.shown, lease=30.0, owner="thief",
                info=None, namespace="dibs", retry=10.0, store_options={},
            )  # fmt: skip
            thief.prefix = client.prefix
            thief.store = Usurping(thief.store, self.stage)  # type: ignore[assignment]  # it passes every attribute on
            self.stage.clients.append(thief)
            self._thieves[place] = thief
        return self._thieves[place]

    def _use(self, world: World) -> None:
        if id(world) not in self._worlds:
            self._worlds[id(world)] = world
            world.reset()


class _Controls:
    """The controls that a client of the kit adds to those of a client."""

    __slots__ = ()
    _core: Client
    _kit: Kit

    @property
    def clock(self) -> Clock:
        """The clock of every client of the test. `clock.advance(3600)` lets an hour pass at once."""
        return self._kit.stage.clock

    @property
    def overlaps(self) -> list[Overlap]:
        """Each case of two holders at once. The test fails at its end unless this list is empty."""
        return self._kit.record.overlaps

    def expire(self, name: str, *, token: int | None = None) -> None:
        """Let the lease of a lock run out: its holders lose it, and the next waiters get it.

        Args:
            name: The name of the lock.
            token: Only the holder with this token. None, the default: all holders.

        Raises:
            NotHeld: There is no such holder.

        Example:
            >>> def test_a_lost_lock_is_noticed(dibs_client) -> None:
            ...     with pytest.raises(dibs.LockLost), dibs_client.lock("invoice:42"):
            ...         dibs_client.expire("invoice:42")
        """
        faults.expire(self._kit.stage, self._core, name, token)

    def steal(self, name: str, *, token: int | None = None) -> dibs.Hold:
        """Let another client replace the holders; they learn of it at their next renewal.

        Args:
            name: The name of the lock.
            token: Only the holder with this token. None, the default: all holders.

        Returns:
            The hold of the other client, of the sync API in both fixtures. It lasts until its `release()` or the
            end of the test.

        Raises:
            NotHeld: There is no such holder.
        """
        return self._kit.steal(self._core, name, token)

    def lose_reply(self, verb: str | None = None) -> LostReply:
        """Lose the reply to the next request to the store. The request itself is carried out.

        Args:
            verb: The next request of this kind: an acquire sends `"join"`, a release `"leave"`, the watchdog
                `"renew"`. None, the default: the next request of any kind.

        Returns:
            An object whose `verb` says which request it was, once it happened.

        Raises:
            ValueError: There is no such verb.
        """
        return self._kit.faults.lose_reply(verb)

    def pause_watchdog(self, *clients: object) -> Pause:
        """Stop the background renewal of clients, until `resume()` of the result or the end of its `with`.

        Args:
            clients: Clients of this test; without any, all of them.
        """
        return self._kit.pause(clients)


class KitClient(_Controls, dibs.Client):
    """A `dibs.Client` of the memory store with controls for tests: the fixture `dibs_client`."""

    __slots__ = ("_kit",)

    def __init__(self, core: Client, kit: Kit) -> None:
        super().__init__(core)
        self._kit = kit

    def another(self, url: str = URL, **options: Any) -> KitClient:
        """Make one more client of this test, as `connect` does.

        Args:
            url: A URL of the memory store.
            options: As in `connect`.
        """
        return self._kit.client(url, **options)


class KitAioClient(_Controls, dibs.aio.Client):
    """A `dibs.aio.Client` of the memory store with controls for tests: the fixture `dibs_aio_client`.

    The controls are not awaited.
    """

    __slots__ = ("_kit",)

    def __init__(self, core: Client, kit: Kit) -> None:
        super().__init__(core)
        self._kit = kit

    def another(self, url: str = URL, **options: Any) -> KitAioClient:
        """Make one more client of this test, as `connect` does.

        Args:
            url: A URL of the memory store.
            options: As in `connect`.
        """
        return self._kit.aio_client(url, **options)


def shut(client: Client) -> None:
    """Close a client without an event loop: the loop of an async client may be closed or stopped."""
    runtime = client.runtime
    client.runtime, client.bind = runtime.blocking(), None
    step(client.close())
    runtime.close()


def _restore_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
