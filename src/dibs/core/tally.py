"""What several stores say of one claim or one line, counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dibs.core.deadline import FOREVER
from dibs.core.rule import Standing
from dibs.info import Finding, LockInfo, Participant

SMALLEST = 3
"""Members of a quorum that can lose one."""
_CLOCKS = 1.0
"""Seconds by which the clocks of members may differ before that is worth a word."""


def reached(values: Iterable[float], count: int) -> float:
    """The highest value that so many of them reach.

    >>> reached([30.0, 12.0, 29.0], 2)
    29.0
    """
    return sorted(values, reverse=True)[count - 1]


def together(standings: Sequence[Standing], needed: int, token: int) -> Standing:
    """How a claim stands that so many of these must say it of: it is certain for as long as a majority says so."""
    left = reached((standing.left for standing in standings), needed)
    return Standing(token, True, left, FOREVER, any(standing.revoked for standing in standings))


def merged(name: str, lines: Sequence[LockInfo], needed: int) -> LockInfo:
    """The line as a majority sees it. Who has the votes of a majority, all with one token, holds. Whoever has fewer is
    shown as waiting, with the highest of its tickets: it is on its way, or it died between the two rounds and keeps
    others waiting until its lease is over."""
    busy = [line for line in lines if line.holders or line.waiters]
    by_token: dict[int, list[Participant]] = {}
    for line in busy:
        for holder in line.holders:
            by_token.setdefault(holder.token, []).append(holder)
    holders = [_one(votes, needed) for votes in by_token.values() if len(votes) >= needed]
    shown = {_who(holder) for holder in holders}
    waiting: dict[tuple[object, ...], Participant] = {}
    for line in busy:
        for other in (*line.holders, *line.waiters):
            before = waiting.get(_who(other))
            if _who(other) not in shown and (before is None or other.token > before.token):
                waiting[_who(other)] = other
    return LockInfo(
        name=name,
        kind=busy[0].kind if busy else "mutex",
        capacity=busy[0].capacity if busy else 1,
        holders=tuple(holders),
        waiters=tuple(sorted(waiting.values(), key=lambda other: (other.since, other.token))),
    )


def is_clear(lines: Iterable[LockInfo], missing: int, needed: int) -> bool:
    """Who has no majority in these lines would have none with those of the missing members either: nothing that they
    say can change who is shown as holding."""
    votes = Counter((line.name, holder.token) for line in lines for holder in line.holders)
    return all(count >= needed or count + missing < needed for count in votes.values())


def page(pages: Sequence[Sequence[LockInfo]], needed: int) -> list[LockInfo]:
    """Pages of the same stretch of names, as one: only so far as each of them goes."""
    end = min((lines[-1].name for lines in pages if lines), default="")
    found: dict[str, list[LockInfo]] = {}
    for line in (line for lines in pages for line in lines if line.name <= end):
        found.setdefault(line.name, []).append(line)
    return [merged(name, found[name], needed) for name in sorted(found)]


def promises(count: int, spare: int, guard: float) -> list[Finding]:
    voting = f"cannot vote for {guard:g} s if it may have lost votes" if guard else "votes at once (guard=0)"
    return [
        Finding("promise", "at most one valid holder, while a majority keeps what it acknowledged, and the members' "
                           "clocks are not stepped forward"),
        Finding("promise", f"keeps working with any {spare} of {count} members down"),
        Finding("promise", "tokens rise strictly: a majority agrees on each"),
        Finding("note", "only lock and rlock, and no queue: which waiter is next is random",
                "use one server, or ZooKeeper, for order and the other kinds"),
        Finding("note", f"a member that has just started {voting}",
                "connect with guard= set to the longest lease that any client of these members uses"),
    ]  # fmt: skip


def dangers(count: int, needed: int, answered: int, excuses: Sequence[str], apart: float) -> list[Finding]:
    found = []
    if excuses:
        enough = "which is enough" if answered >= needed else f"{needed} are needed"
        what = f"{answered} of {count} members answer, {enough}; {'; '.join(excuses)}"
        found.append(Finding("danger", what, "bring them back, or replace them in every client's URL"))
    if count < SMALLEST:
        found.append(Finding("danger", f"none of {count} members may be down", "use three or five stores"))
    elif count % 2 == 0:
        found.append(
            Finding("note", f"{count} members tolerate no more failures than {count - 1}", "use an odd number")
        )
    if apart >= _CLOCKS:
        what = f"the clocks of the members differ by {apart:.0f} s"
        found.append(Finding("danger", what, "synchronise their clocks (NTP)"))
    return found


def findings(said: Sequence[tuple[str, Sequence[Finding]]]) -> list[Finding]:
    """The dangers of members; what several say alike is said once. Promises and notes speak of one store alone, and are
    not the quorum's."""
    alike: dict[Finding, list[str]] = {}
    for shown, found in said:
        for finding in found:
            if finding.level == "danger":
                alike.setdefault(finding, []).append(shown)
    everyone = [shown for shown, _ in said]
    return [
        Finding(level, f"{'every member' if who == everyone else ', '.join(who)}: {what}", fix)
        for (level, what, fix), who in alike.items()
    ]


def _one(votes: Sequence[Participant], needed: int) -> Participant:
    """One holder of several votes: how long a majority of them lasts is how long it holds."""
    first = min(votes, key=lambda vote: vote.since)
    remaining = reached((vote.remaining for vote in votes), needed)
    return Participant(**{**{name: getattr(first, name) for name in Participant._fields}, "remaining": remaining})


def _who(participant: Participant) -> tuple[object, ...]:
    return participant.owner, participant.host, participant.pid, participant.thread
