"""Columns of text: aligned, or as a table of `rich` where that is installed (the extra `cli`) and somebody sits there.

Whoever gives the cells has made them harmless and short. NO_COLOR leaves the table and takes its colours.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from dibs.cli.talk import put

MOST_DRESSED = 200
"""Rows: nobody reads more of them in a table, and drawing one takes its time."""


class Row(NamedTuple):
    cells: Sequence[str]
    notable: bool
    """Somebody should look at it."""


def lay_out(header: Sequence[str], rows: Sequence[Row]) -> None:
    lines = list(aligned([header, *(row.cells for row in rows)]))
    if not (len(rows) <= MOST_DRESSED and _sits_there() and _fit(lines, len(header)) and _dress(header, rows)):
        for line in lines:
            put(line)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each column as wide as its widest cell.

    >>> list(aligned([("a", "b"), ("ccc", "d")]))
    ['a    b', 'ccc  d']
    """
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(_padded(row, widths)).rstrip()


def _padded(cells: Iterable[str], widths: Iterable[int]) -> Iterable[str]:
    return [cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True)]


def _width(text: str) -> int:
    """How many columns of a terminal it takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _sits_there() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _fit(lines: Sequence[str], columns: int) -> bool:
    """Into a table that breaks no name and no token: each column has a rule and two spaces there."""
    return max(map(_width, lines)) + columns + 2 <= shutil.get_terminal_size().columns


def _dress(header: Sequence[str], rows: Sequence[Row]) -> bool:
    """False: there is no `rich`."""
    try:
        from rich.console import Console  # noqa: PLC0415  (only where it is wanted, and there)
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return False
    table = Table(header_style="bold")
    for title in header:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.cells), style="yellow" if row.notable else None)
    console = Console(file=sys.stdout, color_system=None if os.environ.get("NO_COLOR") else "auto")
    console.print(table)
    return True
