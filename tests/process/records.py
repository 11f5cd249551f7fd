"""Reads what `load.py` recorded, and tells whether two ever held at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Use(NamedTuple):
    begin: float
    end: float
    token: int
    pid: int


def read(log: Path, killed: Mapping[int, float]) -> dict[str, list[Use]]:
    """By name, in the order of their begins. Who never came to an end held until just before it was killed."""
    begun: dict[tuple[str, int], tuple[float, int]] = {}
    uses: dict[str, list[Use]] = {}
    for line in log.read_text().splitlines():
        what, name, token, at, pid = line.split()
        assert what != "overlap", f"somebody else used {name} during the hold with token {token}"
        key = (name, int(token))
        if what == "begin":
            assert key not in begun, f"token {token} of {name} was given twice"
            begun[key] = (float(at), int(pid))
        else:
            start, by = begun[key]
            begun[key] = (start, 0)
            uses.setdefault(name, []).append(Use(start, float(at), int(token), by))
    for (name, number), (start, by) in begun.items():
        if by:
            assert by in killed, f"pid {by} holds {name} no more, was not killed and did not end"
            uses.setdefault(name, []).append(Use(start, max(start, killed[by]), number, by))
    return {name: sorted(found) for name, found in uses.items()}


def check(uses: dict[str, list[Use]]) -> None:
    for name, found in uses.items():
        for one, other in pairwise(found):
            assert one.end <= other.begin, f"{name}: two at once: {one}, {other}"
            assert one.token < other.token, f"{name}: tokens do not rise: {one}, {other}"
