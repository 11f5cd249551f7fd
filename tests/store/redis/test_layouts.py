"""Two versions on one server: each refuses a queue of the other, and changes nothing there.

The scripts in layout_1/ are those of version 0.1.0, without their comments.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dibs.core.queue import QUEUE
from dibs.errors import Mismatch
from dibs.testing.contract.seats import Seat
from store.redis.hashes import SECOND, Raw

OLD = {path.stem: path.read_text() for path in (Path(__file__).parent / "layout_1").glob("*.lua")}
_FLOOR, _LINE = "-- (floor.lua)\n", "-- (line.lua)\n"


class OldClient:
    """A client of version 0.1.0 on the name "dibs:a"."""

    def __init__(self, raw: Raw) -> None:
        self._raw, self.key = raw, raw.queue().key
        self.id = os.urandom(16)

    def join(self) -> Any:
        by = self._raw.now() + 60 * SECOND
        words = self.id, "channel", "mutex", 1, 1, 30 * SECOND, 5 * SECOND, "line", "{}", by
        return self._run("join", [self.key, self._raw.floor], *words)

    def leave(self, *, answered: bool = True) -> Any:
        return self._run("leave", [self.key], self.id, 5 * SECOND, "mutex", "" if answered else "unanswered")

    def _run(self, verb: str, keys: list[bytes], *words: Any) -> Any:
        text = OLD["stands"] + OLD[verb].replace(_FLOOR, OLD["floor"]).replace(_LINE, OLD["line"])
        return self._raw.client.eval(text, len(keys), *keys, *words)


def snapshot(raw: Raw) -> tuple[Any, int]:
    """All that stands in the key, and when it expires."""
    key = raw.queue().key
    return raw.client.hgetall(key), raw.client.pexpiretime(key)


def free(seat: Seat) -> None:
    claim, _ = seat.joined(name="dibs:a")
    seat.leave(claim)


def held(seat: Seat) -> None:
    seat.joined(name="dibs:a")


def waited_for(seat: Seat) -> None:
    seat.joined(name="dibs:a")
    seat.joined(name="dibs:a")


def buried(seat: Seat) -> None:
    """Nothing but a tombstone was ever there."""
    seat.leave(seat.claim(name="dibs:a"), answered=False)


@pytest.mark.parametrize("use", [free, held, waited_for, buried])
def test_an_older_client_is_refused(seat: Seat, raw: Raw, use: Callable[[Seat], None]) -> None:
    """It raises Mismatch for an answer of this shape: the queue is of another kind."""
    use(seat)
    before, floor = snapshot(raw), raw.client.get(raw.floor)
    old = OldClient(raw)
    for _ in range(2):
        _, kind, capacity = old.join()
        assert (kind, capacity) == (b"a queue of a newer version of dibs", 1)
    assert old.leave()[1] == 0
    assert snapshot(raw) == before
    assert raw.client.get(raw.floor) == floor


def test_an_older_client_that_gives_up_ends_nothing(seat: Seat, raw: Raw) -> None:
    """It leaves a tombstone of its own, which says nothing here; above all the key does not expire earlier."""
    claim, _ = seat.joined(name="dibs:a", lease=900.0)
    lasts, head = raw.queue().lasts(), raw.queue().fields()[b"h"]
    OldClient(raw).leave(answered=False)
    assert raw.queue().lasts() > lasts - 60_000
    assert raw.queue().fields()[b"h"] == head
    assert seat.leave(claim)


@pytest.mark.parametrize("is_held", [True, False])
def test_an_older_queue_is_refused(seat: Seat, raw: Raw, is_held: bool) -> None:
    """While it is in use, and as long as it keeps its last ticket."""
    old = OldClient(raw)
    assert old.join()[2] == 1
    if not is_held:
        assert old.leave()[1] == 1
    before, floor = snapshot(raw), raw.client.get(raw.floor)
    claim = seat.claim(name="dibs:a")
    verbs: list[Callable[[], object]] = [
        lambda: seat.join(claim, QUEUE),
        lambda: seat.leave(claim, answered=False),
        lambda: seat.leave(claim),
        lambda: seat.evict(1, "dibs:a"),
        lambda: seat.holders("dibs:a"),
    ]
    for verb in verbs:
        with pytest.raises(Mismatch, match="an older version of dibs uses the key"):
            verb()
    assert snapshot(raw) == before
    assert raw.client.get(raw.floor) == floor
    raw.client.delete(raw.queue().key)
    assert seat.joined(name="dibs:a")[1].holds


def test_a_newer_queue_is_refused(seat: Seat, raw: Raw) -> None:
    free(seat)
    raw.queue().write("h", b"3" + raw.queue().fields()[b"h"][1:])
    before = snapshot(raw)
    with pytest.raises(Mismatch, match="a newer version of dibs uses the key"):
        seat.joined(name="dibs:a")
    assert snapshot(raw) == before
