"""What the demo has proved: the figures of a run, and every objection to them. Nothing here prints."""

from __future__ import annotations

from dataclasses import dataclass, field

from dibs.cli.demo_resource import Audit, Record
from dibs.info import duration


@dataclass(frozen=True)
class Figure:
    """One row of the proof: what, how many (or, as a float, how many seconds), and which."""

    what: str
    number: int | float
    which: str = ""

    @property
    def shown(self) -> str:
        return duration(self.number) if isinstance(self.number, float) else str(self.number)


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
