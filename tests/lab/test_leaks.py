"""Each kind of leak is made on purpose and found; a clean use of dibs is found clean."""

from __future__ import annotations

import _thread
import asyncio
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import dibs
import dibs.aio
from lab import leaks
from process.children import until

SOON = 0.05
"""How long to look for what is certain to stay."""
PATIENT = [sys.executable, "-S", "-c", "input()"]
"""A program that ends with its stdin."""


@pytest.fixture
def after() -> Iterator[ExitStack]:
    """What ends the leaks that a test makes."""
    with ExitStack() as stack:
        yield stack


def found(make: Callable[[], object], *places: leaks.Place) -> list[leaks.Thing]:
    with pytest.raises(leaks.Leaked) as caught, leaks.watch(*places, within=SOON):
        make()
    assert all(str(thing) in str(caught.value) for thing in caught.value.things)
    return caught.value.things


def kinds(things: list[leaks.Thing]) -> list[str]:
    return sorted(thing.kind for thing in things)


def test_nothing_done_nothing_left() -> None:
    with leaks.watch(within=SOON):
        pass


def test_a_child_process(after: ExitStack) -> None:
    def start() -> None:
        child = after.enter_context(subprocess.Popen(PATIENT, stdin=subprocess.PIPE))
        after.callback(child.kill)

    things = found(start)
    assert kinds(things) == ["descriptor", "process"], "with the pipe to it"
    assert "input()" in str(things)


def test_a_child_that_nobody_reaped(after: ExitStack) -> None:
    child = after.enter_context(subprocess.Popen(["true"]))
    text = f"process {child.pid} (not reaped)"
    until(lambda: text in map(str, leaks.processes()), what=text)


def test_an_orphan_is_ours_still(after: ExitStack) -> None:
    program = f"import subprocess; print(subprocess.Popen({PATIENT!r}, stdin=0, stdout=-3, stderr=-3).pid)"
    reading, writing = os.pipe()
    after.callback(os.close, writing)
    after.callback(os.close, reading)

    def start() -> None:
        done = subprocess.run(
            [sys.executable, "-S", "-c", program], stdin=reading, capture_output=True, check=False, timeout=20
        )
        after.callback(os.kill, int(done.stdout), signal.SIGKILL)

    (thing,) = found(start)
    assert thing.kind == "process"


def test_a_thread(after: ExitStack) -> None:
    done = threading.Event()

    def start() -> None:
        thread = threading.Thread(target=done.wait, name="forgotten")
        thread.start()
        after.callback(thread.join)
        after.callback(done.set)

    (thing,) = found(start)
    assert thing.kind == "thread"
    assert thing.text.endswith("forgotten")


def test_a_thread_that_the_threading_module_does_not_know(after: ExitStack) -> None:
    bell, ended = _thread.allocate_lock(), threading.Event()
    bell.acquire()

    def body() -> None:
        bell.acquire()
        ended.set()

    (thing,) = found(lambda: _thread.start_new_thread(body, ()))
    assert thing.text.endswith("unknown to threading")
    bell.release()
    assert ended.wait(20)


def test_a_thread_that_is_just_ending_is_waited_for() -> None:
    looked = threading.Event()

    def place() -> list[leaks.Thing]:
        if threading.active_count() > before:
            looked.set()
        return []

    before = threading.active_count()
    with leaks.watch(place):
        threading.Thread(target=looked.wait, args=(20,)).start()
    assert looked.is_set(), "the watch saw it, and looked again"


def test_a_task() -> None:
    async def run() -> list[leaks.Thing]:
        with pytest.raises(leaks.Leaked) as caught:
            async with leaks.watch(within=SOON):
                task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
        task.cancel()
        return caught.value.things

    (thing,) = asyncio.run(run())
    assert thing.kind == "task"
    assert "forgotten" in thing.text


def test_a_task_that_is_just_ending_is_waited_for() -> None:
    async def run() -> None:
        async with leaks.watch():
            task = asyncio.create_task(asyncio.sleep(0))
        assert task.done()

    asyncio.run(run())


def test_a_descriptor_of_a_file(after: ExitStack, tmp_path: Path) -> None:
    (thing,) = found(lambda: after.enter_context((tmp_path / "x").open("w")))
    assert thing.kind == "descriptor"
    assert thing.text.endswith(str(tmp_path / "x"))


def test_a_second_descriptor_of_the_same_file(after: ExitStack, tmp_path: Path) -> None:
    after.enter_context((tmp_path / "x").open("w"))
    (thing,) = found(lambda: after.enter_context((tmp_path / "x").open("w")))
    assert thing.kind == "descriptor"


def test_another_number_for_the_same_thing_is_no_leak(after: ExitStack, tmp_path: Path) -> None:
    first = after.enter_context((tmp_path / "x").open("w"))
    with leaks.watch(within=SOON):
        after.enter_context((tmp_path / "x").open("w"))
        first.close()


def test_a_socket_is_told_by_its_addresses(after: ExitStack) -> None:
    server = after.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = server.getsockname()[1]
    (thing,) = found(lambda: after.enter_context(socket.create_connection(("127.0.0.1", port))))
    assert re.search(rf"socket:\[\d+\] \('127.0.0.1', \d+\) \('127.0.0.1', {port}\)$", thing.text)


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "before").write_text("")

    def make() -> None:
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "x").write_text("")
        (tmp_path / "turn").write_text("")

    things = found(make, leaks.files(tmp_path, stays=("*/turn",)))
    assert [thing.text for thing in things] == [str(tmp_path / "deep"), str(tmp_path / "deep" / "x")]


def test_a_row(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = wal; CREATE TABLE t (n); INSERT INTO t VALUES (1)")

        def add() -> None:
            connection.execute("INSERT INTO t VALUES (2)")
            connection.commit()

        (thing,) = found(add, leaks.rows(path, "SELECT n FROM t"))
    assert str(thing) == "row (2,)"
    assert len(leaks.rows(path, "SELECT n FROM t")()) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["x.db"], "looking left nothing itself"


def test_a_body_that_raises_is_not_interrupted(after: ExitStack, tmp_path: Path) -> None:
    def fail() -> None:
        with leaks.watch(within=SOON):
            after.enter_context((tmp_path / "x").open("w"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_dibs_that_is_still_open_has_a_claim_a_client_and_files(after: ExitStack, tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    before = leaks.look(leaks.sqlite(path))
    client = after.enter_context(dibs.connect(f"sqlite:///{path}"))
    client.lock("a").acquire()
    there = leaks.left(before, leaks.look(leaks.sqlite(path)))
    texts = [str(thing) for thing in there if thing.kind in ("row", "file")]
    assert [text.split()[1] for text in texts if text.startswith("row")] == ["('claim',", "('client',"]
    assert sorted(Path(text).suffix for text in texts if text.startswith("file")) == [".live", ".sock"]
    assert {"thread", "descriptor"} <= set(kinds(there))
    client.close()
    leaks.settle(before, leaks.sqlite(path))


def use(client: dibs.Client) -> None:
    """A bit of everything: free, busy, waited for, given up, shared, dropped at close."""
    with client.lock("a"):
        assert client.lock("a").acquire(timeout=0.01) is None
    assert client.lock("b", fair=False).acquire(timeout=0) is not None
    assert client.lock("b", fair=False).acquire(timeout=0.01) is None
    with client.rwlock("c").read, client.semaphore("d", 3).acquire(2):
        pass
    waiter = threading.Thread(target=lambda: client.lock("e").acquire().release())
    with client.lock("e"):
        waiter.start()
        until(lambda: client.inspect("e").waiters)
    waiter.join()
    client.lock("f").acquire()


async def use_aio(client: dibs.aio.Client) -> None:
    async with client.lock("a"):
        assert await client.lock("a").acquire(timeout=0.01) is None
        waiter = asyncio.ensure_future(client.lock("a").acquire())
        while not (await client.inspect("a")).waiters:
            await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
    async with client.rwlock("c").read, await client.semaphore("d", 3).acquire(2):
        pass
    await client.lock("f").acquire()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_clean_use_of_the_blocking_face(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    url = f"sqlite:///{path}" if kind == "sqlite" else "memory://"
    with leaks.watch(leaks.sqlite(path)), dibs.connect(url) as client:
        use(client)


def test_the_thread_that_calls_back_ends_with_its_client() -> None:
    told = threading.Event()
    with leaks.watch(), dibs.connect("memory://") as client:
        client.lock("f", on_lost=lambda _: told.set()).acquire()
        client.close()
        assert told.wait(20)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_clean_use_of_the_asyncio_face(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    url = f"sqlite:///{path}" if kind == "sqlite" else "memory://"

    async def run() -> None:
        async with leaks.watch(leaks.sqlite(path)), dibs.aio.connect(url) as client:
            await use_aio(client)

    with leaks.watch(leaks.sqlite(path)):
        asyncio.run(run())


def test_words_of_a_process_that_are_no_text(after: ExitStack) -> None:
    """Another test's, or anybody's: whoever looks at all processes of the machine meets them."""
    child = after.enter_context(subprocess.Popen([*PATIENT, b"caf\xe9"], stdin=subprocess.PIPE))
    after.callback(child.kill)
    until(lambda: "caf\N{REPLACEMENT CHARACTER}" in leaks.command_line(child.pid), what="its words")
    assert leaks.command_line(child.pid) in leaks.command_lines()
