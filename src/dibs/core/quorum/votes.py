"""Merges the replies of the members of a quorum about one claim or one queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dibs.core.deadline import FOREVER
from dibs.core.rule import Standing
from dibs.info import Finding, LockInfo, Participant

SMALLEST = 3
"""The smallest quorum that tolerates a failed member."""
_CLOCKS = 1.0
"""Seconds by which the clocks of members may differ before `doctor` reports it."""


def reached(values: Iterable[float], count: int) -> float:
    """The highest value that at least `count` of the values reach.

    >>> reached([30.0, 12.0, 29.0], 2)
    29.0
    """
    return sorted(values, reverse=True)[count - 1]


def together(standings: Sequence[Standing], needed: int, token: int) -> Standing:
    """Merge the standings of one claim: it is valid for as long as `needed` members say so."""
    left = reached((standing.left for standing in standings), needed)
    return Standing(token, True, left, FOREVER, any(standing.revoked for standing in standings))


def merged(name: str, queues: Sequence[LockInfo], needed: int) -> LockInfo:
    """The queue as a majority sees it. A claim with the votes of a majority, all with one token, is a holder. A claim
    with fewer votes is shown as a waiter, with its highest ticket: it is between its two rounds, or its client died
    there and blocks others until its lease ends."""
    busy = [queue for queue in queues if queue.holders or queue.waiters]
    by_token: dict[int, list[Participant]] = {}
    for queue in busy:
        for holder in queue.holders:
            by_token.setdefault(holder.token, []).append(holder)
    holders = [_one(votes, needed) for votes in by_token.values() if len(votes) >= needed]
    shown = {_who(holder) for holder in holders}
    waiting: dict[tuple[object, ...], Participant] = {}
    for queue in busy:
        for other in (*queue.holders, *queue.waiters):
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


def is_clear(queues: Iterable[LockInfo], missing: int, needed: int) -> bool:
    """Whether the missing replies cannot change the holders: no claim without a majority could reach one."""
    votes = Counter((queue.name, holder.token) for queue in queues for holder in queue.holders)
    return all(count >= needed or count + missing < needed for count in votes.values())


def page(pages: Sequence[Sequence[LockInfo]], needed: int) -> list[LockInfo]:
    """Merge pages of the same range of names, up to the last name that all of them cover."""
    end = min((queues[-1].name for queues in pages if queues), default="")
    found: dict[str, list[LockInfo]] = {}
    for queue in (queue for queues in pages for queue in queues if queue.name <= end):
        found.setdefault(queue.name, []).append(queue)
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


def findings(by_member: Sequence[tuple[str, Sequence[Finding]]]) -> list[Finding]:
    """The dangers of the members, equal ones merged. Promises and notes of one store do not apply to the quorum."""
    alike: dict[Finding, list[str]] = {}
    for shown, found in by_member:
        for finding in found:
            if finding.level == "danger":
                alike.setdefault(finding, []).append(shown)
    everyone = [shown for shown, _ in by_member]
    return [
        Finding(level, f"{'every member' if who == everyone else ', '.join(who)}: {what}", fix)
        for (level, what, fix), who in alike.items()
    ]


def _one(votes: Sequence[Participant], needed: int) -> Participant:
    """Merge several votes into one holder, which lasts as long as a majority of them."""
    first = min(votes, key=lambda vote: vote.since)
    return first._replace(remaining=reached((vote.remaining for vote in votes), needed))


def _who(participant: Participant) -> tuple[object, ...]:
    return participant.owner, participant.host, participant.pid, participant.thread
