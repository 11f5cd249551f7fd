"""The named mutants, as core.txt and stores.txt list them, and what a mutant is."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "dibs"
LISTS = ("core.txt", "stores.txt")
_GAP = r"(?:\s|(?:#|--) .*\n)*"


class Change(NamedTuple):
    """One piece of code that becomes another."""

    path: str
    """Below src/dibs."""
    where: str
    """A function or Class.method of a Python file; empty: the whole file."""
    old: str
    new: str

    def applied(self, text: str) -> str:
        if self.old == text:
            return self.new
        start, end = _span(text, self.where) if self.where else (0, len(text))
        found = list(_pattern(self.old).finditer(text, start, end))
        if len(found) != 1:
            raise ValueError(f"this is {len(found)} times in {self.path} {self.where}, and not once:\n{self.old}")
        (one,) = found
        line = text[text.rfind("\n", 0, one.start()) + 1 : one.start()]
        indent = line[: len(line) - len(line.lstrip())]
        return text[: one.start()] + self.new.replace("\n", f"\n{indent}") + text[one.end() :]


class Mutant(NamedTuple):
    name: str
    changes: tuple[Change, ...]
    survives: str = ""
    """Why no test is expected to notice it."""
    first: tuple[str, ...] = ()
    """The tests that are likely to."""

    @property
    def path(self) -> str:
        return self.changes[0].path

    def applied(self, source: Path = SOURCE) -> dict[str, str]:
        """The files that it changes, by path, with their new text."""
        found: dict[str, str] = {}
        for change in self.changes:
            text = found.get(change.path) or (source / change.path).read_text(encoding="utf-8")
            found[change.path] = change.applied(text)
        return found


def named() -> list[Mutant]:
    return [mutant for name in LISTS for mutant in parse((HERE / name).read_text(encoding="utf-8"))]


def parse(text: str) -> list[Mutant]:
    found: list[Mutant] = []
    for line in text.splitlines():
        sign, rest = line[:1], line[2:]
        if sign == "=":
            name, _, place = rest.partition(" @ ")
            found.append(Mutant(name, (_change(place),)))
        elif sign and sign in "@-+?>":
            found[-1] = _with(found[-1], sign, rest)
        elif sign not in ("", "#"):
            raise ValueError(f"this line says nothing about a mutant: {line}")
    return found


def _with(mutant: Mutant, sign: str, text: str) -> Mutant:
    *before, last = mutant.changes
    if sign == "@":
        return mutant._replace(changes=(*mutant.changes, _change(text)))
    if sign == "?":
        return mutant._replace(survives=text)
    if sign == ">":
        return mutant._replace(first=(*mutant.first, *text.split()))
    more = {"old": _joined(last.old, text)} if sign == "-" else {"new": _joined(last.new, text)}
    return mutant._replace(changes=(*before, last._replace(**more)))


def _change(place: str) -> Change:
    path, _, where = place.partition(" ")
    return Change(path, where, "", "")


def _joined(before: str, line: str) -> str:
    return f"{before}\n{line}" if before else line


def _pattern(code: str) -> re.Pattern[str]:
    """The same tokens, however they are spaced, broken into lines and commented."""
    words = (rf"(?<!\w){word}(?!\w)" if word[0].isalnum() else re.escape(word) for word in re.findall(r"\w+|\S", code))
    return re.compile(_GAP.join(words))


@cache
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def _span(text: str, where: str) -> tuple[int, int]:
    """Where a function begins and ends."""
    body: list[ast.stmt] = _tree(text).body
    for name in where.split("."):
        (node,) = (one for one in body if getattr(one, "name", None) == name)
        body = getattr(node, "body", [])
    lines = text.splitlines(keepends=True)
    assert node.end_lineno is not None
    return sum(map(len, lines[: node.lineno - 1])), sum(map(len, lines[: node.end_lineno]))
