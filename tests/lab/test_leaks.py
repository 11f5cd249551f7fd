"""Each kind of leak is made on purpose and found; what is just ending is waited for."""

from __future__ import annotations

import _thread
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import dibs
from lab import leaks
from process.children import until

SOON = 0.05
"""How long to look for what is certain to stay."""
PATIENT = [sys.executable, "-S", "-c", "input()"]
"""A program that ends with its stdin."""


@pytest.fixture
def after() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def found(make: Callable[[], object], *places: leaks.Place) -> list[leaks.Thing]:
    with pytest.raises(leaks.Leaked) as caught, leaks.watch(*places, within=SOON):
        make()
    assert all(str(thing) in str(caught.value) for thing in caught.value.things)
    return caught.value.things


def test_processes(after: ExitStack) -> None:
    def start() -> None:
        child = after.enter_context(subprocess.Popen([*PATIENT, b"caf\xe9"], stdin=subprocess.PIPE))
        after.callback(child.kill)
        until(lambda: "caf\N{REPLACEMENT CHARACTER}" in leaks.command_line(child.pid), what="its words, not all text")

    things = found(start)
    assert sorted(thing.kind for thing in things) == ["descriptor", "process"], "with the pipe to it"
    assert "input()" in str(things)
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
            [sys.executable, "-S", "-c", program], stdin=reading, capture_output=True, check=False, timeout=60
        )
        after.callback(os.kill, int(done.stdout), signal.SIGKILL)

    (thing,) = found(start)
    assert thing.kind == "process"


def test_threads(after: ExitStack) -> None:
    done, bell, ended = threading.Event(), _thread.allocate_lock(), threading.Event()

    def start() -> None:
        thread = threading.Thread(target=done.wait, name="forgotten")
        thread.start()
        after.callback(thread.join)
        after.callback(done.set)

    (thing,) = found(start)
    assert thing.kind == "thread"
    assert thing.text.endswith("forgotten")
    bell.acquire()

    def body() -> None:
        bell.acquire()
        ended.set()

    (thing,) = found(lambda: _thread.start_new_thread(body, ()))
    assert thing.text.endswith("unknown to threading")
    bell.release()
    assert ended.wait(60)


def test_tasks() -> None:
    async def run() -> list[leaks.Thing]:
        async with leaks.watch():
            ending = asyncio.create_task(asyncio.sleep(0))
        assert ending.done(), "it was waited for"
        with pytest.raises(leaks.Leaked) as caught:
            async with leaks.watch(within=SOON):
                task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
        task.cancel()
        return caught.value.things

    (thing,) = asyncio.run(run())
    assert thing.kind == "task"
    assert "forgotten" in thing.text


def test_descriptors(after: ExitStack, tmp_path: Path) -> None:
    def opened() -> object:
        return after.enter_context((tmp_path / "x").open("w"))

    for _ in range(2):  # a second one of the same file too
        (thing,) = found(opened)
        assert thing.kind == "descriptor"
        assert thing.text.endswith(str(tmp_path / "x"))
    first = after.enter_context((tmp_path / "y").open("w"))
    with leaks.watch(within=SOON):  # another number for the same thing
        after.enter_context((tmp_path / "y").open("w"))
        first.close()
    server = after.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = server.getsockname()[1]
    (thing,) = found(lambda: after.enter_context(socket.create_connection(("127.0.0.1", port))))
    assert re.search(rf"socket:\[\d+\] \('127.0.0.1', \d+\) \('127.0.0.1', {port}\)$", thing.text)


def test_dibs_that_is_still_open_has_a_claim_a_client_and_files(after: ExitStack, tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    before = leaks.look(leaks.sqlite(path))
    client = after.enter_context(dibs.connect(f"sqlite:///{path}"))
    client.lock("a").acquire()
    there = leaks.left(before, leaks.look(leaks.sqlite(path)))
    texts = [str(thing) for thing in there if thing.kind in ("row", "file")]
    assert [text.split()[1] for text in texts if text.startswith("row")] == ["('claim',", "('client',"]
    assert sorted(Path(text).suffix for text in texts if text.startswith("file")) == [".live", ".sock"]
    assert {"thread", "descriptor"} <= {thing.kind for thing in there}
    client.close()
    leaks.settle(before, leaks.sqlite(path))
