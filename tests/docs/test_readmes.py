"""README.md is short, and README.zh-CN.md says the same: its code, its links and the shape of its tables are equal."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^<picture>.*?^</picture>$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_CELL = re.compile(r"(?<!\\)\|")
_FIXED = re.compile(r"`[^`]+`|\]\(([^)]+)\)")
"""A translation keeps inline code and link targets."""
_LINK = re.compile(r"\]\(([^)]+)\)")


def tables(text: str) -> list[list[list[list[str]]]]:
    """For each table its rows, for each row its cells, for each cell its code and links."""
    rows = ([_CELL.split(row)[1:-1] for row in table.splitlines()] for table in _TABLE.findall(_FENCED.sub("", text)))
    return [[[[found[0] for found in _FIXED.finditer(cell)] for cell in row] for row in table] for table in rows]


def test_the_readme_is_short() -> None:
    assert len(ENGLISH.splitlines()) <= 150


def test_code_blocks_pictures_and_tables_are_equal() -> None:
    for parts in (_FENCED.findall, _PICTURE.findall, tables):
        assert parts(ENGLISH) == parts(CHINESE) != []


def test_sections_are_as_many_and_lead_to_the_same_pages() -> None:
    """The Chinese one also links to the words in Chinese; each links to the other."""
    more = {"docs/zh/words.md", "README.md", "README.zh-CN.md"}
    parts = [re.split(r"^## ", _FENCED.sub("", text), flags=re.MULTILINE) for text in (ENGLISH, CHINESE)]
    english, chinese = ([set(_LINK.findall(part)) - more for part in some] for some in parts)
    assert english == chinese
