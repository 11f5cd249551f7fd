"""Forged wake-ups (case 23): ten thousand a second cause looks at most; nobody is granted, who waits is served."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from process.children import Child, Crew, clock, until
from store.sqlite.places import beside, rows

FLOOD = "../security/flood"
ENOUGH = 15_000
"""Messages; an idle machine sends them in a fifth of a second."""
MOST_LOOKS = 20.0
"""A second, of one waiter. Undisturbed it is one."""


def cpu(child: Child) -> float:
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Looks(threading.Thread):
    """Counts how often the claim behind the holder is renewed: each look of a waiter is a renewal of its own."""

    def __init__(self, path: Path, claim: bytes) -> None:
        super().__init__(daemon=True)
        self._path, self._claim = path, claim
        self._over = threading.Event()
        self.count = 0
        self.start()

    def run(self) -> None:
        last = None
        with closing(sqlite3.connect(self._path, timeout=5)) as connection:
            while not self._over.is_set():
                row = connection.execute("SELECT until FROM claims WHERE id = ?", (self._claim,)).fetchone()
                self.count += last is not None and row != last
                last = row
                time.sleep(0.0005)

    def end(self) -> int:
        self._over.set()
        self.join(5)
        return self.count


def last_claim(path: Path) -> bytes:
    ((claim,),) = rows(path, "SELECT id FROM claims WHERE name = 'dibs:a' ORDER BY ticket DESC LIMIT 1")
    return bytes(claim)


@pytest.mark.soak  # rates within a second; store/sqlite/test_presence.py shows in every run that nothing comes of it
@pytest.mark.parametrize("knows", ["nothing", "the id"])
def test_a_flood_of_forged_messages(crew: Crew, path: Path, knows: str) -> None:
    """By a process of the same user: others cannot reach our sockets. Who knows an id can read and write the database,
    so nothing is gained by it; then each message that is heard is a look, and the figure says how many."""
    holder, waiter = crew.worker(), crew.worker()
    old = holder.take("a")
    waiter.tell("take", "a", 40)
    until(lambda: holder.ask("line", "a", hear="line") == ["1", "1"], what="the line")
    claim = last_claim(path)
    flood = crew.start(FLOOD, beside(path), ENOUGH, *([claim.hex()] if knows == "the id" else []))
    flood.hear("flooding")
    looks, used, begun = Looks(path, claim), cpu(waiter), clock()
    flood.hear("enough")
    until(lambda: clock() - begun > 1.5, what="what is measured")
    seconds, share = clock() - begun, (cpu(waiter) - used) / (clock() - begun)
    looked = looks.end()
    assert waiter.silent(), "a forged message granted"
    assert holder.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    assert holder.ask("give", "a", hear="gave") == ["ok"]
    given = clock()
    token, _, got = waiter.hear("took")
    accepted, refused, lasted = map(float, flood.ask("stop", hear="sent"))
    print(
        f"figure: flood, {knows} known: {(accepted + refused) / lasted:.0f} a second, {accepted / lasted:.0f} heard; "
        f"{looked / seconds:.1f} looks a second, {share:.0%} of a core; served after {float(got) - given:.3f} s"
    )
    assert int(token) > old
    assert float(got) - given < 3, "the waiter was not served in time"
    if knows == "nothing":
        assert looked / seconds < MOST_LOOKS, "forged messages for nobody are looks at the store"
        assert share < 0.8
    assert waiter.ask("give", "a", hear="gave") == ["ok"]
