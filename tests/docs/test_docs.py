"""The documents are true: every Python block in them runs, every relative link leads somewhere.

A block is a program of its own. It runs in this process, in an empty directory and with an embedded store of its own;
one that forks or ends its process says so on the line before it and runs apart:

    <!-- run apart: it forks -->
    <!-- not run: it holds the lock for twenty seconds -->
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import dibs
import dibs.errors

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
STORE_HEADINGS = ["Use", "Promise", "How it works", "Limits and settings"]
_MARK = re.compile(r"<!-- (not run|run apart): (.+) -->")
_LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#+) +(.+?)\s*$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """The line number of the first line of code."""
    code: str
    mark: str
    reason: str


def blocks_of(page: Path) -> Iterator[Block]:
    before, code, begins = "", None, 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if code is not None:
            if line != "```":
                code.append(line)
                continue
            marked = _MARK.fullmatch(before)
            mark, reason = marked.groups() if marked else ("", "")
            yield Block(page, begins, "\n".join(code) + "\n", mark, reason)
            code = None
        elif line == "```python":
            code, begins = [], number + 1
        before = line if code is None else before
    assert code is None, f"{page}: a block that begins at line {begins} has no end"


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
assert sum(not block.mark for block in BLOCKS) >= 20


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    return {slug(text) for _, text in _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS}), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIBS_URL", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for block in blocks_of(page):
        (place := tmp_path / str(block.line)).mkdir()
        monkeypatch.chdir(place)
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        # As many line feeds before it as stand in the page: a traceback then names the page's own lines.
        compiled = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec")
        if block.mark == "run apart":
            subprocess.run([sys.executable, "-c", block.code], check=True, timeout=50)
        elif not block.mark:
            exec(compiled, {"__name__": "__main__"})


def test_relative_links_lead_somewhere() -> None:
    wrong = []
    for page in PAGES:
        for target in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if re.match(r"[a-z]+:", target) or (there.exists() and (not anchor or anchor in anchors(there))):
                continue
            wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert not wrong


def test_every_row_of_a_table_has_as_many_cells() -> None:
    """Else it is shown as text."""
    for page in PAGES:
        for table in re.findall(r"(?m)^(?:\|.*\n)+", page.read_text(encoding="utf-8") + "\n"):
            counts = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
            assert len(counts) == 1, f"{page.relative_to(ROOT)}: {table[:200]}"


def test_every_page_is_in_the_contents_once() -> None:
    """They become the sidebar of the site: tests/docs/test_site.py."""
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("<!-- contents -->")[2]
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    listed = [target.partition("#")[0] for target in _LINK.findall(contents)]
    assert sorted(listed) == sorted(set(pages) - {"index.md"})


def test_every_error_is_in_the_index_of_errors() -> None:
    listed = anchors(ROOT / "docs" / "errors.md")
    classes = [name for name, value in inspect.getmembers(dibs.errors, inspect.isclass) if name in dibs.__all__]
    missing = [name for name in classes if issubclass(getattr(dibs, name), Exception) and slug(name) not in listed]
    assert not missing


def test_a_store_has_the_same_four_headings() -> None:
    for page in {*(ROOT / "docs" / "stores").glob("*.md")} - {ROOT / "docs" / "stores" / "README.md"}:
        text = _FENCED.sub("", page.read_text(encoding="utf-8"))
        assert [text for level, text in _HEADING.findall(text) if level == "##"] == STORE_HEADINGS, page
