"""What the demo prints: one live line that is redrawn on a terminal, lines on change elsewhere, and the proof.

The line is the store's own account (`client.inspect`), the figures are the resource's. Colour only on a terminal, and
not where NO_COLOR is set.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field

from dibs.cli.demo_resource import Audit, Record
from dibs.info import LockInfo, duration, printable

_BETWEEN_LINES = 0.25
"""Seconds between two plain lines: a hand-over takes milliseconds, and nobody reads hundreds of lines."""
_BOLD, _GREEN, _RED = "1", "32", "31"


class Show:
    def __init__(self, *, plain: bool) -> None:
        self._live = not plain and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._shown = ""
        self._next_at = 0.0

    def line(self, at: float, info: LockInfo, turns: int, of: int) -> None:
        """Who holds it and who stands in line, now."""
        holder = " ".join(printable(one.owner) for one in info.holders) or "nobody"
        waiting = " ".join(printable(one.owner) for one in info.waiters) or "nobody"
        token = f"   token {info.holders[0].token}" if info.holders else ""
        text = f"held by {holder:<9}  line: {waiting}{token}"
        if self._live:
            room = shutil.get_terminal_size().columns - 1
            self._put("\r" + f"{at:6.2f} s  {turns:>3}/{of}  {text}"[:room] + "\x1b[K")
        elif text != self._shown and at >= self._next_at:
            self._put(f"{at:6.2f} s  {turns:>3}/{of}  {text}\n")
            self._shown, self._next_at = text, at + _BETWEEN_LINES

    def event(self, at: float, text: str) -> None:
        """Something that stays to be read."""
        self._put(f"{self._fresh()}{at:6.2f} s  {self._paint(text, _BOLD)}\n")

    def say(self, text: str, *, good: bool | None = None) -> None:
        colour = None if good is None else _GREEN if good else _RED
        self._put(f"{self._fresh()}{self._paint(text, colour)}\n")

    def _fresh(self) -> str:
        """Start of line, with the live line wiped away."""
        return "\r\x1b[K" if self._live else ""

    def _paint(self, text: str, colour: str | None) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour and colour else text

    @staticmethod
    def _put(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


@dataclass
class Outcome:
    """What is known when the last worker is done."""

    wanted: int
    record: Record
    audit: Audit
    seconds: float
    longest_wait: float
    kills: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    faults_wanted: int = 1

    @property
    def turns(self) -> int:
        return sum(self.record.turns.values())

    def objections(self) -> list[str]:
        """Why this proves nothing, or the opposite; empty is what the demo is for."""
        record, audit = self.record, self.audit
        checks = {
            f"{self.turns} turns instead of {self.wanted}": self.turns == self.wanted == audit.writes,
            f"{record.overlaps} overlaps": record.overlaps == 0,
            f"the count is {record.value} instead of {self.wanted}: writes were lost": record.value == self.wanted,
            f"accepted tokens fell {audit.fell} times": audit.fell == 0,
            "no holder was killed": len(self.kills) >= self.faults_wanted,
            "no holder was stopped past its lease": len(self.stops) >= self.faults_wanted,
            "no stale write was refused": len(audit.refused_writes) >= self.faults_wanted,
        }
        return [text for text, holds in checks.items() if not holds]

    def rows(self) -> list[tuple[str, object, str]]:
        """The proof: what, how many, and which."""
        record, audit = self.record, self.audit
        late = "; ".join(f"{user.worker}, token {user.token}" for user in audit.refused_writes)
        return [
            ("turns done", self.turns, f"of {self.wanted}"),
            ("hand-overs", audit.handovers, "from one worker to another"),
            ("killed while holding", len(self.kills), "; ".join(self.kills)),
            ("stopped while holding", len(self.stops), "; ".join(self.stops)),
            ("take-overs", record.takeovers, "from a holder that was dead or past its own deadline"),
            ("overlaps", record.overlaps, "two inside while both holds were valid"),
            ("stale writes refused", len(audit.refused_writes), late),
            ("tokens fell", audit.fell, f"times; the highest was {record.highest}"),
            ("count", record.value, "each turn read it and wrote one more"),
            ("longest wait", duration(self.longest_wait), ""),
            ("time", duration(self.seconds), ""),
        ]


def show_proof(show: Show, outcome: Outcome) -> bool:
    show.say("")
    for what, number, which in outcome.rows():
        show.say(f"  {what:<22}{number!s:>8}  {which}".rstrip())
    show.say("")
    objections = outcome.objections()
    show.say(
        "NOT PROVED: " + "; ".join(objections) if objections else "PROVED: one at a time, whatever happened to them.",
        good=not objections,
    )
    return not objections
