"""The inbox of threads: whoever stops leading rings one who waits, and nobody else."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from dibs.runtime.inbox import ThreadInbox
from dibs.runtime.threads import boottime, step
from process.children import until

LONG = 30.0


class Wire:
    """A source that says what it is given, to one reader at a time."""

    def __init__(self) -> None:
        self.said: SimpleQueue[tuple[bytes, bytes] | None] = SimpleQueue()
        self.readers: list[threading.Thread] = []

    def fileno(self) -> int:
        raise NotImplementedError

    def read(self) -> list[tuple[bytes, bytes]]:
        raise NotImplementedError

    def receive(self, patience: float) -> list[tuple[bytes, bytes]]:
        self.readers.append(threading.current_thread())
        message = self.said.get(timeout=LONG)
        return [] if message is None else [message]

    def poke(self) -> None:
        self.said.put(None)


def waiting(inbox: ThreadInbox, key: bytes) -> tuple[threading.Thread, list[bytes | None]]:
    heard: list[bytes | None] = []

    def wait() -> None:
        heard.append(step(inbox.wait(key, boottime() + LONG)))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, heard


def test_the_lead_goes_to_one_who_waits_not_to_one_who_waited() -> None:
    inbox, wire = ThreadInbox(boottime), Wire()
    inbox.listen(wire)
    for key in (b"over", b"first", b"second"):
        inbox.expect(key)
    before, _ = waiting(inbox, b"over")
    wire.said.put((b"over", b"!"))
    before.join(LONG)  # its key is still expected, as that of a claim which is held: it does not wait any more
    first, _ = waiting(inbox, b"first")
    until(lambda: first in wire.readers, what="a leader")
    second, heard = waiting(inbox, b"second")
    until(lambda: b"second" in inbox._waiters, what="a second who waits")
    wire.said.put((b"first", b"!"))
    first.join(LONG)
    until(lambda: second in wire.readers, what="its successor reading")
    wire.said.put((b"second", b"!"))
    second.join(LONG)
    assert heard == [b"!"]


def test_who_reads_by_hand_leads_alone() -> None:
    """Also in its own thread: a signal's handler that asks something amidst its reading does not read too."""
    inbox, wire = ThreadInbox(boottime), Wire()
    assert inbox.lead() is None, "there is nothing to read"
    inbox.listen(wire)
    hand = inbox.lead()
    assert hand is not None
    assert inbox.lead() is None
    inbox.expect(b"first")
    first, heard = waiting(inbox, b"first")
    until(lambda: b"first" in inbox._waiters, what="one who waits")
    assert not wire.readers
    inbox.resign()
    until(lambda: first in wire.readers, what="its successor reading")
    wire.said.put((b"first", b"!"))
    first.join(LONG)
    assert heard == [b"!"]


def test_one_who_read_by_hand_and_vanished_is_followed() -> None:
    """An interrupt within an interrupt: `resign` was not reached."""
    inbox, wire = ThreadInbox(boottime), Wire()
    inbox.listen(wire)
    hand = inbox.lead()
    assert hand is not None
    del hand
    again = inbox.lead()
    assert again is not None
    del again
    inbox.expect(b"next")
    following, _ = waiting(inbox, b"next")
    until(lambda: following in wire.readers, what="the next one reading")
    wire.said.put((b"next", b"!"))
    following.join(LONG)


class Contended:
    """A mutex that somebody else gets as soon as it is free."""

    def __init__(self, other: threading.Thread) -> None:
        self._other = other
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._other.ident is None:
            self._other.start()
            self._other.join(LONG)


def test_who_leads_by_hand_next_is_not_followed_by_whom_the_last_one_rings() -> None:
    inbox, wire = ThreadInbox(boottime), Wire()
    inbox.listen(wire)
    hands: list[object | None] = []
    other = threading.Thread(target=lambda: hands.append(inbox.lead()), daemon=True)
    hand = inbox.lead()
    inbox._mutex = Contended(other)  # type: ignore[assignment]  # as much of a lock as is used
    inbox.resign()
    other.join(LONG)
    assert hand is not None
    assert hands[0] is not None
    assert inbox.lead() is None, "the other one leads"
