"""Redisson's locks in a Java process, for the rows on Redis: `RLock` and its fair form, which queues as dibs does.

Maven fetches Redisson and compiles java/RedissonPeer.java into a temporary directory; without Maven or Java the peer is
left out. A process is warmed up before it is measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from contest import PROCESSES, Contender, Outcome
from crew import Failed
from measure import Settings, Timed

LOCK, FAIR_LOCK = "Redisson RLock", "Redisson fair RLock"
KINDS = {LOCK: "lock", FAIR_LOCK: "fair"}
_SOURCES = Path(__file__).parent / "java"
_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC")


def version() -> str:
    """The version that java/pom.xml names."""
    after = (_SOURCES / "pom.xml").read_text().partition("<artifactId>redisson</artifactId><version>")[2]
    return after.partition("<")[0]


@cache
def _class_path(directory: Path) -> str:
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            raise Failed(f"{program} is not installed")
    place = directory / "redisson"
    subprocess.run(
        ["mvn", "-q", "-B", f"-Dplace={place}", "compile", "dependency:build-classpath",
         f"-Dmdep.outputFile={place}/classpath"],
        cwd=_SOURCES, check=True, capture_output=True, timeout=600,
    )  # fmt: skip
    return os.pathsep.join([str(place / "classes"), (place / "classpath").read_text().strip()])


class Java:
    """One process. `ask` sends a command and `hear` reads its reply, so several processes can work at once."""

    def __init__(self, url: str, settings: Settings, stack: ExitStack) -> None:
        words = ["java", *_FLAGS, "-cp", _class_path(settings.built), "RedissonPeer", url.removesuffix("/0")]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        stack.callback(self._end)
        if self.hear() != "ready":
            raise Failed("Redisson did not start")

    def ask(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise Failed("Redisson ended")
        return answer.rstrip("\n")

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()


def pair(kind: str, url: str, settings: Settings, stack: ExitStack) -> Timed:
    java = Java(url, settings, stack)

    def run(n: int) -> list[float]:
        java.ask("pairs", KINDS[kind], "redisson-free", n)
        return [int(nanoseconds) / 1e9 for nanoseconds in java.hear().split()]

    run(settings.choose(10_000, 200))
    return run


def contender(kind: str, url: str, settings: Settings, stack: ExitStack) -> Contender:
    """Four JVMs of one thread each, as the processes of dibs."""
    javas = [Java(url, settings, stack) for _ in range(PROCESSES)]

    def turn(seconds: float, hold: float) -> tuple[int, list[list[tuple[int, int]]]]:
        end = time.monotonic_ns() + round(seconds * 1e9)
        for java in javas:
            java.ask("contend", KINDS[kind], f"redisson-{KINDS[kind]}", 1, end, round(hold * 1e6))
        answers = [java.hear().partition("\t")[0].rstrip(",").split(",") for java in javas]
        return end, [[_hold(text) for text in answer if text] for answer in answers]

    def contend(outcome: Outcome, seconds: float, hold: float) -> None:
        outcome.add_holds(seconds, *turn(seconds, hold))

    turn(settings.choose(5.0, 0.5), 0.0)
    return contend


def _hold(text: str) -> tuple[int, int]:
    granted, released = text.split()
    return int(granted), int(released)
