"""`dibs ls [PREFIX]`: every lock that is held or waited for, the most contended first.

Contention is counted in waiter-seconds: the sum of how long each waiter has waited. No character of PREFIX is special.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from dibs.cli import options as given
from dibs.cli.options import Parser, add_store, connect
from dibs.cli.table import Row, lay_out
from dibs.cli.talk import OK, age, lock_object, put_json, same, say, who
from dibs.faces import place
from dibs.info import LockInfo, clip, duration

HEADER = ("NAME", "KIND", "HOLDER", "HELD FOR", "WAITING", "LONGEST WAIT", "LEASE LEFT", "TOKEN")
_LONGEST_NAME, _LONGEST_KIND, _LONGEST_HOLDER = 60, 24, 64


def parser() -> Parser:
    made = Parser("ls", description="List the locks that are held or waited for, the longest total wait first.")
    made.add_argument(
        "prefix", metavar="PREFIX", nargs="?", default="", type=given.name, help="only names that begin with PREFIX"
    )
    add_store(made)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    with connect(options, "ls") as client:
        found, store = list(client.locks(options.prefix)), place(client)
    now = datetime.now(UTC)
    found.sort(key=lambda info: (-pressure(info, now), info.name))
    if options.json:
        for info in found:
            put_json(lock_object(info))
    elif found:
        lay_out(HEADER, [_row(info, now) for info in found])
    else:
        which = f' whose name begins with "{options.prefix}"' if options.prefix else ""
        say(f"no lock{which} is held or waited for on {store}")
    return OK


def pressure(info: LockInfo, now: datetime) -> float:
    """Waiter-seconds."""
    return sum(max((now - one.since).total_seconds(), 0.0) for one in info.waiters)


def _row(info: LockInfo, now: datetime) -> Row:
    waits = [one.since for one in info.waiters]
    cells = [clip(info.name, _LONGEST_NAME), kind(info), "nobody", "", str(len(waits)), "", "", ""]
    if waits:
        cells[5] = age(min(waits), now)
    if info.holders:
        first, more = info.holders[0], len(info.holders) - 1
        cells[2] = clip(who(first), _LONGEST_HOLDER) + same(info.name, first) + (f" +{more}" if more else "")
        cells[3], cells[6], cells[7] = age(first.since, now), duration(first.remaining), str(first.token)
    return Row(cells, notable=bool(waits))


def kind(info: LockInfo) -> str:
    """The kind of a lock, and how much of it is in use.

    >>> from dibs.info import Participant
    >>> kind(LockInfo(name="a", kind="semaphore", capacity=5, holders=(Participant(weight=3),)))
    'semaphore 3/5'
    """
    used = sum(one.weight for one in info.holders)
    if info.kind == "semaphore":
        return f"semaphore {used}/{info.capacity}"
    if info.kind == "striped":
        return f"striped of {info.capacity}"
    if info.kind == "rw" and info.holders:
        return "rw write" if used >= info.capacity else f"rw read {used}"
    return clip(info.kind, _LONGEST_KIND)
