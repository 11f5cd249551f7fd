"""`dibs ls [PREFIX]`: every lock that is held or waited for, the most contended first.

Contention is counted in waiter-seconds: the sum of how long each waiter has waited. No character of PREFIX is special.
On a terminal with `rich` (the extra `cli`) it prints a table, else aligned columns. NO_COLOR removes the colours.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from dibs._shared import place
from dibs.cli.options import Parser, add_store, connect, lock_name
from dibs.cli.output import OK, age, has_colour, is_terminal, lock_object, put, put_json, same, say
from dibs.info import LockInfo, Participant, clip, duration, who
from dibs.monitor.scan import pressure

MOST_RICH_ROWS = 200
"""Most rows in a table of `rich`, which is slow to draw."""


class Row(NamedTuple):
    cells: Sequence[str]
    notable: bool
    """Whether the lock has waiters."""


def print_table(header: Sequence[str], rows: Sequence[Row]) -> None:
    lines = list(aligned([header, *(row.cells for row in rows)]))
    if not (len(rows) <= MOST_RICH_ROWS and is_terminal() and _fits(lines, len(header)) and _print_rich(header, rows)):
        for line in lines:
            put(line)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each column as wide as its widest cell.

    >>> list(aligned([("a", "b"), ("ccc", "d")]))
    ['a    b', 'ccc  d']
    """
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _width(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _fits(lines: Sequence[str], columns: int) -> bool:
    """Whether a table fits without folding: it adds a rule and two spaces per column."""
    return max(map(_width, lines)) + columns + 2 <= shutil.get_terminal_size().columns


def _print_rich(header: Sequence[str], rows: Sequence[Row]) -> bool:
    """Print with `rich`; False: it is not installed."""
    try:
        from rich.console import Console  # noqa: PLC0415  (optional)
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return False
    table = Table(header_style="bold")
    for title in header:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.cells), style="yellow" if row.notable else None)
    console = Console(file=sys.stdout, color_system="auto" if has_colour() else None)
    console.print(table)
    return True


HEADER = ("NAME", "KIND", "HOLDER", "HELD FOR", "WAITING", "LONGEST WAIT", "LEASE LEFT", "TOKEN")
_LONGEST_NAME, _LONGEST_KIND, _LONGEST_HOLDER = 60, 24, 64


def parser() -> Parser:
    made = Parser("ls", description="List the locks that are held or waited for, the longest total wait first.")
    made.add_argument(
        "prefix", metavar="PREFIX", nargs="?", default="", type=lock_name, help="only names that begin with PREFIX"
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
        print_table(HEADER, [row(info, now) for info in found])
    else:
        which = f' whose name begins with "{options.prefix}"' if options.prefix else ""
        say(f"no lock{which} is held or waited for on {store}")
    return OK


def row(info: LockInfo, now: datetime) -> Row:
    cells = [clip(info.name, _LONGEST_NAME), kind(info), "nobody", "", str(len(info.waiters)), "", "", ""]
    if info.waiters:
        cells[5] = age(min(info.waiters, key=lambda one: one.since), now)
    if info.holders:
        first, more = info.holders[0], len(info.holders) - 1
        cells[2] = clip(who(first), _LONGEST_HOLDER) + same(info.name, first) + (f" +{more}" if more else "")
        cells[3], cells[6], cells[7] = age(first, now), duration(first.remaining), str(first.token or "")
    return Row(cells, notable=bool(info.waiters))


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


def share(info: LockInfo, one: Participant) -> str:
    """The side of a read-write lock, or the permits of a semaphore.

    >>> info = LockInfo(name="a", kind="rw", capacity=1000)
    >>> share(info, Participant(weight=1)), share(info, Participant(weight=1000))
    ('read', 'write')
    """
    if info.kind == "semaphore":
        return f"{one.weight} of {info.capacity} permits"
    if info.kind == "rw":
        return "write" if one.weight >= info.capacity else "read"
    return ""
