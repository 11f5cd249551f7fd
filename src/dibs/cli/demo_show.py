"""How the demo is told: `Lines` in a pipe and with --plain, `Objects` with --json; demo_screen.py draws it instead.

The line is the store's own account (`client.inspect`), the turns and the figures are the resource's. An event with a
sentence stays to be read; one without happens all the time, and only --json and the picture heed it.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dibs.cli.demo_proof import Outcome
from dibs.cli.demo_resource import Record
from dibs.cli.talk import harmless, put_json
from dibs.info import LockInfo, printable

_BETWEEN_LINES = 0.25
"""Seconds between two plain lines: a handover takes milliseconds, and nobody reads hundreds of lines."""
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


class Show(Protocol):
    def begin(self, options: argparse.Namespace, names: Sequence[str]) -> None: ...

    def event(self, event: Event) -> None: ...

    def glance(self, at: float, info: LockInfo, record: Record) -> None:
        """How the line and the resource look now; called often."""

    def give_up(self, why: str) -> None: ...

    def prove(self, outcome: Outcome) -> None: ...

    def close(self) -> None:
        """Nothing half said stays, whatever ended the demo. May be called again."""


class Lines:
    """Lines on change, each of which stays."""

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
        """Every line is whole when it is put."""

    def _put(self, text: str, style: str = "", *, before: str = "") -> None:
        write(f"{before}{painted(harmless(text), style if self._colour else '')}\n")


class Objects:
    """One JSON object per event; the last one says `proved`, however the demo ended by itself."""

    def begin(self, options: argparse.Namespace, names: Sequence[str]) -> None:
        put_json(
            {
                "event": "began",
                "workers": len(names),
                "turns": options.turns,
                "lease": options.lease,
                "seed": options.seed,
            }
        )

    def event(self, event: Event) -> None:
        about = {"event": event.what, "at": round(event.at, 3), "worker": event.worker, "token": event.token}
        put_json({**about, **event.facts})

    def glance(self, at: float, info: LockInfo, record: Record) -> None:
        """Nothing has happened."""

    def give_up(self, why: str) -> None:
        put_json({"event": "failed", "why": why, "proved": False})

    def prove(self, outcome: Outcome) -> None:
        objections = outcome.objections()
        figures = {
            figure.what.replace(" ", "_").replace("-", "_"): round(figure.number, 3) for figure in outcome.figures()
        }
        put_json({"event": "proof", "proved": not objections, "objections": objections, **figures})

    def close(self) -> None:
        """Every object is whole when it is put."""


def painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


def write(text: str) -> None:
    """As it is: what is foreign in it was made harmless before. A terminal that was closed is a pipe without reader."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EIO:
            raise BrokenPipeError(*error.args) from None
        raise
