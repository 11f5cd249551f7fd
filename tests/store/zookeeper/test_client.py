"""The client on a real server: the order of requests, the reader of replies, and faults that a session survives."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest
from kazoo.client import KazooClient

import dibs
import dibs.aio
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import QUIET, SessionClient
from dibs.backends.zookeeper.wire.exchange import Bell, Exchange
from dibs.backends.zookeeper.wire.session import Connection, PendingRequest
from dibs.core.runtime import Inbox
from dibs.testing.contract.harness import World, eventually, passed
from lab.curator import PATIENCE
from lab.proxy import DOWN, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.stopwatch import Stopwatch
from lab.witness import fresh_name
from process.children import until
from store.faults.kit import usually_sync
from store.sides import APIS, python
from store.zookeeper.faulty import GET, through

LEASE = 5.0


def test_the_own_node_is_watched_before_the_one_ahead(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an operator could remove the own node in between, and the next event would count as a grant."""
    asked: list[bytes] = []
    send = Connection.send

    def noting(connection: Connection, calls: Sequence[PendingRequest], *, ahead: bool = False) -> bytes:
        if connection is theirs:  # the holder looks at its own node, too
            asked.extend(call.request.body for call in calls if call.request.operation == GET)
        return send(connection, calls, ahead=ahead)

    with dibs.connect(url) as holder, dibs.connect(url) as waiter, ThreadPoolExecutor(1) as pool:
        with waiter.lock("connected", timeout=PATIENCE):
            """And now it waits for nothing else."""
        theirs = waiter._core.store._opened.client._exchange._connection
        hold = holder.lock("ordered").acquire(timeout=PATIENCE)
        assert hold is not None
        monkeypatch.setattr(Connection, "send", noting)
        waits = pool.submit(waiter.lock("ordered").acquire, timeout=PATIENCE)
        until(lambda: len(asked) >= 2, what="both are watched")
        hold.release()
        assert waits.result(PATIENCE)
        monkeypatch.undo()
    numbers = [body[-11:-1] for body in asked[:2]]
    assert numbers == [b"0000000001", b"0000000000"], "own, then ahead"


def test_requests_that_a_closed_loop_did_not_send_go_out_with_the_next_loop(url: str) -> None:
    forgotten: list[Callable[[], None]] = []
    planned: list[Callable[[], None]] = []

    def put_together(exchange: Exchange, plans: list[Callable[[], None]]) -> bool:
        """Queue it behind other replies; else it would go out at once."""
        exchange.send([PendingRequest(codec.sync("/")) for _ in range(200)])
        return exchange.send([PendingRequest(codec.sync("/"))], call_soon=plans.append) and bool(plans)

    async def play() -> None:
        async with dibs.aio.connect(url) as client:
            async with client.lock("a"):
                """Connected."""
            exchange: Exchange = client._core.store._opened.client._exchange
            until(lambda: put_together(exchange, forgotten), what="a plan")
            until(lambda: put_together(exchange, planned), what="another plan, as the first was forgotten")

    asyncio.run(play())
    assert len(forgotten) == 1
    assert planned


@pytest.mark.alone
def test_an_answer_that_the_heart_read_is_not_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat thread reads each reply before the caller does, and must tell it at once."""
    with dibs.connect(url) as client:
        with client.lock("a", timeout=PATIENCE):
            """Connected."""
        exchange: Exchange = client._core.store._opened.client._exchange
        wait, stolen = Bell.wait, []

        def slow(bell: Bell, transport: object, patience: float) -> bool:
            transport_there = exchange._transport
            if bell is exchange.bell and transport_there is not None and transport_there.ready(1.0):
                exchange._read_at = 0.0
                stolen.append(exchange.read_for_the_leader(client._core.now()))
                exchange._deputy = False
            return wait(bell, transport_there, patience)

        monkeypatch.setattr(Bell, "wait", slow)
        lock = client.lock("a", timeout=PATIENCE)
        with Stopwatch() as watch:
            for _ in range(5):
                with lock:
                    """Ten answers, none of which the caller reads itself."""
            took = watch.seconds()
        monkeypatch.undo()
    assert any(stolen)
    assert took < 5, "each answer was waited for until the reader looked at the clock"


def test_a_caller_that_arrives_as_the_session_opens_does_not_wait(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It found no session, and registers only after earlier callers have been woken."""
    arrive = SessionClient.arrive
    found_none, is_up = threading.Event(), threading.Event()

    def late(client: SessionClient, inbox: Inbox, key: bytes) -> None:
        if threading.current_thread() is comer:
            found_none.set()
            assert is_up.wait(PATIENCE)
        arrive(client, inbox, key)

    monkeypatch.setattr(SessionClient, "arrive", late)
    with dibs.connect(url, retry=10 * PATIENCE) as client:
        comer = threading.Thread(target=client.inspect, args=("a",), daemon=True)
        comer.start()
        assert found_none.wait(PATIENCE)
        client.inspect("b")
        is_up.set()
        comer.join(PATIENCE)
        assert not comer.is_alive()


@pytest.mark.gate
def test_a_reader_that_is_stuck_in_a_handler_costs_no_session(url: str) -> None:
    """A blocking caller reads the socket itself; a signal handler interrupts its wait for a lock."""
    stuck: list[float] = []

    def handler(number: int, frame: FrameType | None) -> None:
        begun = time.monotonic()
        until(lambda: time.monotonic() > begun + 2 * LEASE, what="twice the timeout")  # that it is busy is the test
        stuck.append(hold.remaining)

    before, me = signal.signal(signal.SIGUSR1, handler), threading.get_ident()
    try:
        with dibs.connect(url, lease=LEASE) as client, dibs.connect(url, lease=LEASE) as other:
            hold = client.lock("held").acquire()
            theirs = other.lock("wanted").acquire()
            assert hold is not None
            assert theirs is not None
            threading.Timer(0.5, lambda: signal.pthread_kill(me, signal.SIGUSR1)).start()
            assert client.lock("wanted").acquire(timeout=1.0) is None  # it is held
            until(lambda: stuck, what="the handler")
            assert stuck[0] > 0, "the session was lost while its reader was stuck"
            hold.check()
            hold.release()
            theirs.release()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.gate
def test_a_try_after_a_reader_was_interrupted_is_answered(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that was being read is lost. The next request must use a new connection."""
    receive, me = Connection.receive, threading.get_ident()

    def interrupted(connection: Connection, data: bytes) -> None:
        if threading.get_ident() != me:
            receive(connection, data)
            return
        monkeypatch.undo()
        raise KeyboardInterrupt

    with dibs.connect(url) as client, dibs.connect(url) as other, other.lock("a"):
        lock = client.lock("a")
        assert lock.acquire(timeout=0) is None
        monkeypatch.setattr(Connection, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(timeout=0)
        assert lock.acquire(timeout=0) is None


@pytest.mark.alone
@usually_sync
async def test_a_holders_connection_that_breaks_is_replaced_at_once(world: World, server: Server) -> None:
    """Also while only the client's own thread reads: until then the holder would not hear of a loss."""
    with Proxy((ports.HOST, server.port)) as proxy:
        client = world.client(through(proxy), lease=20.0)
        (ana,) = world.actors("ana")
        hold = await ana(lambda: client.lock(fresh_name()).acquire(timeout=PATIENCE))
        took = [PATIENCE]
        while min(took) >= 0.3 and len(took) < 15:  # the machine may be busy during most of them
            old = proxy.links[-1]
            await passed(2 * QUIET)  # by then it reads
            begun = time.monotonic()
            await asyncio.to_thread(proxy.cut)
            await eventually(lambda old=old: proxy.links[-1] is not old and proxy.links[-1].down.passed.bytes)
            took.append(time.monotonic() - begun)
        assert min(took) < 0.3, took
        assert not hold.lost.is_set()
        await ana(hold.release)


@pytest.mark.gate
@pytest.mark.parametrize("api", APIS)
def test_the_own_node_is_asked_for_while_it_is_exchanged(server: Server, api: str) -> None:
    """A writer becomes a reader by another node. The watch of a hold of 100 ms goes out behind the exchange and finds
    the old node gone: that is no loss. Who reads the answers, and how many at once, differs from round to round."""
    with Proxy((ports.HOST, server.port)) as proxy, python(api, through(proxy)) as side:
        client = side.client()
        for number in range(5):
            hold = side.take(client.rwlock(f"exchanged-{api}-{number}").write)
            answers = proxy.hold(DOWN)
            changes = side.begin(hold.downgrade)
            answers.await_held()
            asked = proxy.links[-1].up.passed
            before = asked.messages
            with contextlib.suppress(AssertionError):  # a slow machine sent it before: this round shows nothing
                proxy.wait_for(lambda asked=asked, before=before: asked.messages > before, within=0.3)
            answers.deliver()
            changes.result(PATIENCE)
            hold.check()
            assert not hold.lost.is_set()
            side.do(hold.release)


def test_a_writer_that_reads_too_is_one_holder_and_is_broken_as_one(server: Server, kazoo: KazooClient) -> None:
    """As Curator has it since 5.5: two nodes of one number, each with its own id, one claim."""
    with dibs.connect(server.url(), namespace="") as client:
        writing = kazoo.create(f"/rw/_c_{uuid.uuid4()}-__WRIT__", b"java", ephemeral=True, sequence=True, makepath=True)
        kazoo.create(f"/rw/_c_{uuid.uuid4()}-__READ__{writing[-10:]}", b"java", ephemeral=True)
        info = client.inspect("/rw")
        (holder,) = info.holders
        assert (info.kind, info.waiters, holder.owner) == ("rw", (), "java")
        client.break_("/rw", token=holder.token)
        assert kazoo.get_children("/rw") == [], "neither of its nodes stays"
        with client.rwlock("/rw").write.acquire(timeout=PATIENCE) as hold:
            assert hold.token > holder.token


@pytest.mark.gate
def test_a_command_outlasts_the_timeout_of_a_sound_session() -> None:
    """The server grants less than the lease. Between two heartbeats less than a quarter of that is left: no loss."""
    require("zookeeper")
    with Server(ZooKeeper("maxSessionTimeout=12000")) as server:
        command = ["run", "--url", server.url(), "--lease", "30", "a", "--", "sleep", "13"]
        done = subprocess.run(
            [sys.executable, "-m", "dibs.cli.main", *command], capture_output=True, text=True, timeout=50, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
