"""The named mutants, as core.txt and stores.txt list them, and what a mutant is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "dibs"
LISTS = ("core.txt", "stores.txt")


class Change(NamedTuple):
    """Whole lines of one file, given by a path below src/dibs, that become others."""

    path: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        count = f"\n{text}\n".count(f"\n{self.old}\n")
        if count != 1:
            raise ValueError(f"these lines stand {count} times in {self.path}, and not once:\n{self.old}")
        return f"\n{text}\n".replace(f"\n{self.old}\n", f"\n{self.new}\n")[1:-1]


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
    """
    >>> parse("= a name @ core/rule.py\\n-old\\n+new")
    [Mutant(name='a name', changes=(Change(path='core/rule.py', old='old', new='new'),), survives='', first=())]
    """
    found: list[Mutant] = []
    for line in text.splitlines():
        sign, rest = line[:1], line[1:]
        if sign == "=":
            name, _, path = rest.partition(" @ ")
            found.append(Mutant(name.strip(), (Change(path, "", ""),)))
        elif sign and sign in "@-+?>":
            mutant = found[-1]
            change = mutant.changes[-1]
            if sign == "@":
                more = (*mutant.changes, Change(rest.strip(), "", ""))
            elif sign == "-":
                more = (*mutant.changes[:-1], change._replace(old=_joined(change.old, rest)))
            elif sign == "+":
                more = (*mutant.changes[:-1], change._replace(new=_joined(change.new, rest)))
            elif sign == ">":
                more, mutant = mutant.changes, mutant._replace(first=(*mutant.first, rest.strip()))
            else:
                more, mutant = mutant.changes, mutant._replace(survives=rest.strip())
            found[-1] = mutant._replace(changes=more)
        elif sign not in ("", "#"):
            raise ValueError(f"this line says nothing about a mutant: {line}")
    return found


def _joined(before: str, line: str) -> str:
    return f"{before}\n{line}" if before else line
