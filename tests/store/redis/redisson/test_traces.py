"""The same steps by Java and by Python leave the same keys, types, values and times, and publish the same messages.

A step is done by one of three actors, each a thread of its own. After each step the keys of the name and the messages
are recorded, with stand-ins for what must differ: the name, the ids of holders, the end of an unlock latch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from lab.redisson import PATIENCE, Permits, Redisson, Semaphore
from lab.servers.supervisor import until
from store.redis.redisson.peers import Raw
from store.sides import Python, python

pytestmark = pytest.mark.gate
SLACK = 2.0
"""Seconds by which a time may differ."""
LEASE = 20.0
"""Java is told its lease. Its watchdog would cut the longer one of a writer that re-enters, at any moment."""
BRIEF = 1.0
"""A timeout, in seconds."""
Step = tuple[str, int]
SEQUENCES: dict[str, tuple[str, list[Step]]] = {
    "lock": ("lock", [("take", 0), ("take", 0), ("give", 0), ("give", 0), ("take", 1), ("give", 1)]),
    "waiting": ("lock", [("take", 0), ("wait", 1), ("pass", 0), ("held", 1), ("give", 1)]),
    "forced": ("lock", [("take", 0), ("force", 1)]),
    "fenced": ("fenced", [("take", 0), ("give", 0), ("take", 1), ("take", 1), ("give", 1), ("give", 1)]),
    "fair": (
        "fair",
        [("take", 0), ("take", 0), ("wait", 1), ("wait", 2), ("give", 0), ("pass", 0), ("held", 1), ("pass", 1),
         ("held", 2), ("give", 2)],
    ),
    "fair, one gives up": (
        "fair",
        [("take", 0), ("brief", 1), ("wait", 2), ("gone", 1), ("pass", 0), ("held", 2), ("give", 2)],
    ),
    "readers": ("read", [("take", 0), ("take", 1), ("take", 0), ("give", 0), ("give", 0), ("give", 1)]),
    "the first reader leaves last": ("read", [("take", 0), ("take", 1), ("give", 1), ("give", 0)]),
    "writer": ("write", [("take", 0), ("take", 0), ("give", 0), ("wait", 1), ("pass", 0), ("held", 1), ("give", 1)]),
    "downgrade": ("write", [("take", 0), ("read", 0), ("give", 0), ("unread", 0)]),
    "writer that reads": ("write", [("take", 0), ("read", 0), ("unread", 0), ("give", 0)]),
    "semaphore": ("semaphore", [("take", 0), ("take", 1), ("give", 0), ("give", 1)]),
    "permits": ("permits", [("take", 0), ("take", 1), ("give", 0), ("give", 1)]),
    "latch": ("latch", [("arm", 0), ("down", 1), ("down", 0), ("down", 0)]),
}  # fmt: skip
"""`pass`: a release for which another actor waits. What it leaves is recorded with the next step."""


MORE = {("downgrade", ("give", 0)): [("redisson_rwlock:{NAME}", "1")]}
"""Messages that only Python publishes: a writer that becomes a reader lets the waiting readers in at once."""


class Seen(NamedTuple):
    keys: dict[str, tuple[str, dict[str, str], float | None]]
    """By name: type, values, and seconds to live; None: for ever."""
    messages: list[tuple[str, str]]


class Recorder:
    def __init__(self, raw: Raw, name: str, *, has_marks: bool) -> None:
        self._raw, self._key, self._has_marks = raw, raw.key(name), has_marks
        self._names: dict[str, str] = {self._key: "NAME"}
        self._heard: Any = raw.client.pubsub()
        self._heard.psubscribe(f"*{self._key}*")
        assert self._heard.get_message(timeout=10)["type"] == "psubscribe"

    def look(self) -> Seen:
        """Once no unlock latch is left: both sides delete it a moment later. Marks of a semaphore do not count."""
        client, marks = self._raw.client, f"redisson_unlock_latch:*{self._key}*"
        until(lambda: self._has_marks or not client.keys(marks), PATIENCE, "no latch is left")
        keys = {}
        for key in sorted({*client.keys(f"*{self._key}*")} - {*client.keys(marks)}):
            kind, left = client.type(key).decode(), client.pttl(key)
            keys[self._plain(key.decode())] = kind, self._values(key, kind), None if left < 0 else left / 1000
        return Seen(keys, self._messages())

    def _values(self, key: bytes, kind: str) -> dict[str, str]:
        """Instants are relative to now, in seconds."""
        client, now = self._raw.client, time.time()
        found: Any
        if kind == "hash":
            found = {field.decode(): value.decode() for field, value in client.hgetall(key).items()}
        elif kind == "list":
            found = {str(at): value.decode() for at, value in enumerate(client.lrange(key, 0, -1))}
        elif kind == "zset":
            scores = client.zrange(key, 0, -1, withscores=True)
            found = {_text(member): f"{score / 1000 - now:.3f}" for member, score in scores}
        else:
            found = {"": client.get(key).decode()}
        return {self._plain(field): self._plain(value) for field, value in found.items()}

    def _messages(self) -> list[tuple[str, str]]:
        self._raw.client.publish(f"end of {self._key}", "")
        found: list[tuple[str, str]] = []
        while True:
            message = self._heard.get_message(timeout=10)
            assert message is not None, "what was published did not arrive"
            channel = message["channel"].decode()
            if channel == f"end of {self._key}":
                return found
            found.append((self._plain(channel), message["data"].decode()))

    def _plain(self, text: str) -> str:
        for holder in re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+|\b[0-9a-f]{32}\b", text):
            self._names.setdefault(holder, f"HOLDER {len(self._names)}")
        for long, short in self._names.items():
            text = text.replace(long, short)
        return text

    def close(self) -> None:
        self._heard.close()


def _text(member: bytes) -> str:
    return member.hex() if len(member) == 16 else member.decode()


class JavaActors:
    def __init__(self, java: Redisson, kind: str, name: str) -> None:
        self._handles: list[Any] = [getattr(java, kind)(name) for _ in range(3)]
        self._readers = [java.read(name, beside=handle) for handle in self._handles] if kind == "write" else []
        self._ids: dict[int, list[str]] = {}
        self._waiting: dict[int, Future[Any]] = {}

    def __call__(self, what: str, who: int) -> None:
        handle = self._handles[who]
        match what:
            case "take":
                held = handle.take() if isinstance(handle, Semaphore) else handle.take(lease=LEASE)
                self._ids[who] = held.ids
            case "give":
                handle.give(self._ids[who]) if isinstance(handle, Permits) else handle.give()
            case "wait" | "brief":
                self._waiting[who] = handle.begin_take(BRIEF if what == "brief" else None, LEASE)
            case "held" | "gone":
                assert (self._waiting[who].result(PATIENCE) is None) is (what == "gone")
            case "force":
                assert handle.force()
            case "read":
                assert self._readers[who].take(lease=LEASE) is not None
            case "unread":
                self._readers[who].give()
            case "arm":
                assert handle.set_count(2)
            case "down":
                handle.count_down()


class PythonActors:
    def __init__(self, side: Python, kind: str, name: str) -> None:
        self._side, self._name = side, name
        self._clients = [side.client(lease=LEASE, owner="one", retry=PATIENCE) for _ in range(3)]
        self._locks = [self._make(client, kind) for client in self._clients]
        self._holds: list[list[Any]] = [[], [], []]
        self._reads: dict[int, Any] = {}
        self._waiting: dict[int, Future[Any]] = {}

    def _make(self, client: Any, kind: str) -> Any:
        name = self._name
        made: dict[str, Callable[[], Any]] = {
            "lock": lambda: client.rlock(name),
            "fenced": lambda: client.rlock(name, fenced=True),
            "fair": lambda: client.rlock(name, fair=True),
            "read": lambda: client.rwlock(name).read,
            "write": lambda: client.rwlock(name).write,
            "semaphore": lambda: client.semaphore(name, 3),
            "permits": lambda: client.semaphore(name, 3, renew=False),
            "latch": lambda: client.latch(name),
        }
        return made[kind]()

    def __call__(self, what: str, who: int) -> None:
        side, lock = self._side, self._locks[who]
        match what:
            case "take":
                self._holds[who].append(side.take(lock))
            case "give":
                side.do(self._holds[who].pop().release)
            case "wait" | "brief":
                timeout = BRIEF if what == "brief" else None
                self._waiting[who] = side.begin(lambda: lock.acquire(timeout=timeout))
            case "held" | "gone":
                hold = self._waiting[who].result(PATIENCE)
                assert (hold is None) is (what == "gone")
                self._holds[who].append(hold)
            case "force":
                holder = side.inspect(self._name).holders[0].owner
                side.do(lambda: self._clients[who].break_(self._name, holder=holder))
            case "read":
                self._reads[who] = side.take(self._clients[who].rwlock(self._name).read)
            case "unread":
                side.do(self._reads[who].release)
            case "arm":
                side.do(lambda: lock.arm(2))
            case "down":
                side.do(lock.count_down)


def _wait(raw: Raw, name: str, count: int) -> None:
    """Wait for so many waiters in a queue, or for a subscriber: all locks of a Java process share one."""
    channels = [f"redisson_lock__channel:{{{raw.key(name)}}}", f"redisson_rwlock:{{{raw.key(name)}}}"]
    until(lambda: len(raw.queue(name)) == count or any(map(raw.listening, channels)), PATIENCE, "it waits")


def _recorded(raw: Raw, name: str, kind: str, steps: list[Step], act: Callable[[str, int], None]) -> list[Seen]:
    found, count = [], 0
    with closing(Recorder(raw, name, has_marks=kind == "semaphore")) as recorder:
        for what, who in steps:
            act("give" if what == "pass" else what, who)
            if what in ("wait", "brief"):
                count += 1
                _wait(raw, name, count)
            if what != "pass":
                found.append(recorder.look())
    return found


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("api", ["blocking", "aio"])
def test_both_leave_the_same(java: Redisson, url: str, raw: Raw, name: str, sequence: str, api: str) -> None:
    kind, steps = SEQUENCES[sequence]
    if kind in ("semaphore", "permits"):
        for whose in ("java", "python"):
            raw.client.set(raw.key(f"{name}-{whose}"), 3)
    expected = _recorded(raw, f"{name}-java", kind, steps, JavaActors(java, kind, f"{name}-java"))
    with python(api, url) as side:
        actual = _recorded(raw, f"{name}-python", kind, steps, PythonActors(side, kind, f"{name}-python"))
    recorded = [step for step in steps if step[0] != "pass"]
    for step, theirs, ours in zip(recorded, expected, actual, strict=True):
        assert _without_times(ours.keys) == _without_times(theirs.keys), step
        assert ours.messages == [*theirs.messages, *MORE.get((sequence, step), [])]
        for key, (kind_there, values, left) in theirs.keys.items():
            _, own_values, own_left = ours.keys[key]
            assert (own_left is None) is (left is None), (step, key)
            assert own_left is None or left is None or abs(own_left - left) < SLACK, (step, key, own_left, left)
            if kind_there == "zset":
                for member, score in values.items():
                    assert abs(float(own_values[member]) - float(score)) < SLACK, (step, key, member)


def _without_times(keys: dict[str, tuple[str, dict[str, str], float | None]]) -> dict[str, object]:
    return {key: (kind, sorted(values) if kind == "zset" else values) for key, (kind, values, _) in keys.items()}
