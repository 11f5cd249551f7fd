"""docs/logging.md lists every message that src/dibs logs, with its level and its `event_name`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import get_args

from dibs.events import What
from docs.test_docs import ROOT

PAGE = ROOT / "docs" / "logging.md"
_LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
_PLACEHOLDER = re.compile(r"%[-#0-9.]*[a-z]")


def messages() -> Iterator[tuple[str, str]]:
    """Level and template of each `log().warning("...", ...)`."""
    for path in (ROOT / "src" / "dibs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Call(func=ast.Name(id="log")), attr=level),
                    args=[ast.Constant(value=str(template)), *_],
                ):
                    yield _LEVELS[level], template


def test_every_message_is_on_the_page() -> None:
    rows = re.findall(r"^\| (\w+)[^|]*\| `(.+?)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = sorted(set(messages()))
    assert len(found) >= 10
    for level, template in found:
        text = re.compile(".*?".join(re.escape(part) for part in _PLACEHOLDER.split(template)))
        assert any(said == level and text.fullmatch(row) for said, row in rows), f"{level}: {template}"
    assert len(rows) == len(found), "the page has messages that nobody logs"


def test_every_event_name_is_on_the_page() -> None:
    rows = re.findall(r"^\| \w+[^|]*\| `.+?` \| [\w ]+: ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    said = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    named = {
        node.args[0].value
        for path in (ROOT / "src" / "dibs").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fields"
        if isinstance(node.args[0], ast.Constant)
    }
    assert len(named) >= 10
    assert named <= said
    assert said - named <= {*get_args(What), "leads", "waits_long"}
