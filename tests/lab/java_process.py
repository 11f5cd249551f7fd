"""A Java process that is driven through stdin, for tests whose other side is a Java library.

    java = JavaProcess(["-cp", class_path, "Program", address], "program")
    java.ready                                     # the words after "ready"
    java.tell("a", "take", 500).result(PATIENCE)   # the words of the reply; raises Failed if it is an error

Each line of stdin is a handle, a verb and its words, separated by tabs. Each gets one line of stdout that begins with
the handle. A handle answers in order; different handles answer in any order. The handle "-" reports the start.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Self, TypeVar

from lab.servers import guard, programs

PATIENCE = 60.0
Read = TypeVar("Read")
_number = itertools.count(1)


class Failed(Exception):
    """An exception from Java."""


class JavaProcess:
    """`words` are the arguments of `java`; `log_name` names its log file and its error messages."""

    def __init__(self, words: Sequence[str], log_name: str, *, starting: float = PATIENCE) -> None:
        self._name = log_name
        self._waiting: dict[str, deque[Future[list[str]]]] = {}
        self._turn = threading.Lock()
        self._ended = False
        self._log = guard.root() / f"{log_name}-{next(_number)}.log"
        ready = self._expect("-")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [programs.program("java"), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                cwd=guard.root(),  # the guardian kills it when this process ends, however that happens
                env=programs.environment(),
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ready = ready.result(starting)[1:]
        except BaseException:
            self.kill()
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, handle: str, *words: object) -> Future[list[str]]:
        """The future reply, in words; it raises Failed if Java threw."""
        with self._turn:  # replies are matched by order, so the order of the pipe must be the order of the queue
            answer = self._expect(handle)
            pipe = self._process.stdin
            assert pipe is not None
            pipe.write("\t".join([handle, *map(str, words)]) + "\n")
            pipe.flush()
        return answer

    def _expect(self, handle: str) -> Future[list[str]]:
        assert not self._ended, f"{self._name} has ended; its log:\n{self.log()}"
        answer: Future[list[str]] = Future()
        self._waiting.setdefault(handle, deque()).append(answer)
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            handle, *words = line.rstrip("\n").split("\t")
            answer = self._waiting[handle].popleft()
            if words[0] == "error":
                answer.set_exception(Failed(words[1]))
            else:
                answer.set_result(words)
        with self._turn:
            self._ended = True
        for answer in itertools.chain.from_iterable(self._waiting.values()):
            answer.set_exception(Failed(f"{self._name} ended without a reply; its log:\n{self.log()}"))

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def kill(self) -> None:
        """SIGKILL: the process cannot say goodbye to any server."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """The end of stdin tells the program to disconnect and to exit."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_as(read: Callable[[list[str]], Read], answer: Future[list[str]]) -> Future[Read]:
    told: Future[Read] = Future()

    def hand_on(done: Future[list[str]]) -> None:
        error = done.exception()
        if error is None:
            told.set_result(read(done.result()))
        else:
            told.set_exception(error)

    answer.add_done_callback(hand_on)
    return told


def read_holds(words: list[str]) -> list[tuple[int, int]]:
    """The reply to `contend`: for each hold when it was granted and when its release began."""
    return [(int(granted), int(released)) for granted, released in map(str.split, words[1:])]
