"""The demo's output (`Lines` in a pipe and with --plain, `Objects` with --json) and its result.

The queue is read from the store (`client.inspect`), the turns and figures from the resource. An event with a text is
printed and stays; one without is frequent, and used by --json and the picture only. `Outcome` has the figures of a run
and every objection to them.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dibs.cli.demo_worker import Audit, Record
from dibs.cli.output import harmless, put_json
from dibs.info import LockInfo, duration, printable


@dataclass(frozen=True)
class Figure:
    """One row of the result; a float is a number of seconds."""

    what: str
    number: int | float
    which: str = ""

    @property
    def shown(self) -> str:
        return duration(self.number) if isinstance(self.number, float) else str(self.number)


@dataclass
class Outcome:
    """The state when the last worker is done."""

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
        """Why the run is no proof; empty: it is one."""
        record, audit = self.record, self.audit
        checks = {
            f"{self.turns} turns instead of {self.wanted}": self.turns == self.wanted == audit.writes,
            f"{record.overlaps} overlaps": record.overlaps == 0,
            f"the counter is {record.value} instead of {self.wanted}: writes were lost": record.value == self.wanted,
            f"{audit.fell} accepted tokens were lower than an earlier one": audit.fell == 0,
            "no holder was killed": len(self.kills) >= self.faults_wanted,
            "no holder was paused past its lease": len(self.stops) >= self.faults_wanted,
            "no stale write was refused": len(audit.refused_writes) >= self.faults_wanted,
        }
        return [text for text, holds in checks.items() if not holds]

    def figures(self) -> list[Figure]:
        record, audit = self.record, self.audit
        late = "; ".join(f"{user.worker}, token {user.token}" for user in audit.refused_writes)
        return [
            Figure("turns done", self.turns, f"of {self.wanted}"),
            Figure("handovers", audit.handovers, "from one worker to another"),
            Figure("killed while holding", len(self.kills), "; ".join(self.kills)),
            Figure("paused while holding", len(self.stops), "; ".join(self.stops)),
            Figure("takeovers", record.takeovers, "from a holder that was dead or past its own deadline"),
            Figure("overlaps", record.overlaps, "two workers in the resource while both held a valid lock"),
            Figure("stale writes refused", len(audit.refused_writes), late),
            Figure("tokens out of order", audit.fell, f"the highest token was {record.highest}"),
            Figure("counter", record.value, "each turn read it and added one"),
            Figure("longest wait", float(self.longest_wait)),
            Figure("time", float(self.seconds)),
        ]


_BETWEEN_LINES = 0.25
"""Seconds between two plain lines: handovers take milliseconds, which is too fast to read."""
BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"


@dataclass(frozen=True)
class Event:
    """Something that happened to a worker, `at` seconds after the beginning."""

    at: float
    what: str
    worker: str
    token: int | None = None
    text: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


class Lines:
    """Prints a line per change."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._wanted = 0
        self._shown = ""
        self._next_at = 0.0

    def begin(self, options: argparse.Namespace, names: Sequence[str]) -> None:
        self._wanted = len(names) * options.turns
        self._put(
            f"{len(names)} workers, {options.turns} turns each, one lock, one resource. "
            f"Lease {options.lease:g} s, seed {options.seed}."
        )

    def event(self, event: Event) -> None:
        if event.text:
            self._put(event.text, BOLD, before=f"{event.at:6.2f} s  ")

    def glance(self, at: float, info: LockInfo, record: Record) -> None:
        """Show the current state of the queue and the resource; called often."""
        holder = " ".join(printable(one.owner) for one in info.holders) or "nobody"
        waiting = " ".join(printable(one.owner) for one in info.waiters) or "empty"
        token = f"   token {info.holders[0].token}" if info.holders else ""
        text = f"held by {holder:<9}  queue: {waiting}{token}"
        if text != self._shown and at >= self._next_at:
            self._put(f"{at:6.2f} s  {sum(record.turns.values()):>3}/{self._wanted}  {text}")
            self._shown, self._next_at = text, at + _BETWEEN_LINES

    def give_up(self, why: str) -> None:
        self._put(f"failed: {why}", RED)

    def prove(self, outcome: Outcome) -> None:
        self._put("")
        for figure in outcome.figures():
            self._put(f"  {figure.what:<22}{figure.shown:>8}  {figure.which}".rstrip())
        self._put("")
        if objections := outcome.objections():
            self._put("NOT PROVED: " + "; ".join(objections), RED)
        else:
            self._put("PROVED in this run: no two workers held the lock at the same time.", GREEN)

    def close(self) -> None:
        """Nothing to clean up."""

    def _put(self, text: str, style: str = "", *, before: str = "") -> None:
        write(f"{before}{painted(harmless(text), style if self._colour else '')}\n")


class Objects:
    """Prints a JSON object per event; the last one has `proved`, unless a signal ended the demo."""

    def begin(self, options: argparse.Namespace, names: Sequence[str]) -> None:
        settings = {"turns": options.turns, "lease": options.lease, "seed": options.seed}
        put_json({"event": "began", "workers": len(names), **settings})

    def event(self, event: Event) -> None:
        about = {"event": event.what, "at": round(event.at, 3), "worker": event.worker, "token": event.token}
        put_json({**about, **event.facts})

    def glance(self, at: float, info: LockInfo, record: Record) -> None:
        """Only events are printed."""

    def give_up(self, why: str) -> None:
        put_json({"event": "failed", "why": why, "proved": False})

    def prove(self, outcome: Outcome) -> None:
        objections = outcome.objections()
        figures = {
            figure.what.replace(" ", "_").replace("-", "_"): round(figure.number, 3) for figure in outcome.figures()
        }
        put_json({"event": "proof", "proved": not objections, "objections": objections, **figures})

    def close(self) -> None:
        """Nothing to clean up."""


def painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


def write(text: str) -> None:
    """Write a text that is harmless already. A closed terminal counts as a broken pipe."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EIO:
            raise BrokenPipeError(*error.args) from None
        raise
