"""The result of a run: figures for a file, and a text for people.

Zero violations in n hand-overs mean, with 95 % confidence, fewer than 3/n for each hand-over.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import dibs
from lab.checkers import Verdict
from lab.history import History
from lab.resource import Tally


@dataclass(frozen=True)
class Report:
    store: str
    seconds: float
    seed: str
    lease: float
    workers: str
    calls: int
    grants: int
    hand_overs: int
    faults: dict[str, int]
    violations: dict[str, int]
    past_the_deadline: int
    naive_updates: int
    naive_lost_percent: float
    fenced_refused: int
    bound: float | None
    """Violations for each hand-over are fewer than this (95 %), if there were none."""
    recovery: float | None
    versions: dict[str, str]
    text_of_violations: str = ""

    @property
    def clean(self) -> bool:
        return not any(self.violations.values())

    def line(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        bound = "none: there were violations" if self.bound is None else f"fewer than {self.bound:.1e} per hand-over"
        recovery = "nobody got anything" if self.recovery is None else f"{self.recovery:.2f} s after healing at most"
        return "\n".join(
            [
                f"{self.store}: {self.workers}, lease {self.lease:g} s, {self.seconds:g} s, seed {self.seed}",
                f"  calls            {self.calls}, grants {self.grants}, hand-overs {self.hand_overs}",
                f"  faults           {_counts(self.faults)}",
                f"  violations       {_counts(self.violations)}",
                f"  3/n bound (95 %) {bound}",
                f"  past deadlines   {self.past_the_deadline} acted late; the fence refused {self.fenced_refused}",
                f"  naive resource   lost {self.naive_lost_percent:.1f} % of {self.naive_updates} updates",
                f"  all served again {recovery}",
                f"  versions         {', '.join(f'{name} {text}' for name, text in self.versions.items())}",
                *([self.text_of_violations] if self.text_of_violations else []),
            ]
        )


def report(
    history: History, verdict: Verdict, naive: Sequence[Tally], fenced: Sequence[Tally], **about: object
) -> Report:
    """`about`: what only the one who ran it knows."""
    updates, lost = sum(tally.acknowledged for tally in naive), sum(tally.lost for tally in naive)
    clean = not verdict.violations
    return Report(
        calls=len(history.uses),
        grants=len(history.grants),
        hand_overs=history.hand_overs,
        faults=dict(sorted(history.faults.items())),
        violations=verdict.guilty,
        past_the_deadline=verdict.past,
        naive_updates=updates,
        naive_lost_percent=round(100 * lost / updates, 2) if updates else 0.0,
        fenced_refused=sum(tally.refused for tally in fenced),
        bound=3 / history.hand_overs if clean and history.hand_overs else None,
        recovery=None if verdict.recovery is None else round(verdict.recovery, 3),
        text_of_violations=verdict.text(),
        **about,  # type: ignore[arg-type]
    )


def versions(more: dict[str, str]) -> dict[str, str]:
    return {
        "dibs": dibs.__version__,
        "python": platform.python_version(),
        **more,
        "kernel": f"{platform.system()} {platform.release()}",
    }


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
