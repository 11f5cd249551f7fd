"""The pages under docs/recipes show the programs under examples/ as they are, and all of them."""

from __future__ import annotations

import re
from pathlib import Path

from recipes.programs import EXAMPLES, ROOT

RECIPES = ROOT / "docs" / "recipes"
PAGES = sorted(page for page in RECIPES.glob("*.md") if page.name != "README.md")
SHOWN = re.compile(
    r"<!-- not run: examples/(\S+), which tests/recipes runs -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
HEADINGS = ["The program", "Run it", "What it does not protect against", "In a cluster"]
NOT_SHOWN = {"stopped_holder.py", "django_project/shop/__init__.py"}
"""Told of in docs/concepts/fencing.md; nothing to see."""


def shown(page: Path) -> dict[str, str]:
    return dict(SHOWN.findall(page.read_text(encoding="utf-8")))


def test_a_page_shows_its_programs_as_they_are() -> None:
    for page in PAGES:
        programs = shown(page)
        assert programs, f"{page.name}: a recipe has a program"
        for name, text in programs.items():
            assert text == (EXAMPLES / name).read_text(encoding="utf-8"), f"copy examples/{name} into {page.name}"
        assert re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE) == HEADINGS
        assert f"]({page.name})" in (RECIPES / "README.md").read_text(encoding="utf-8")


def test_every_program_is_shown_once() -> None:
    programs = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py"))
    found = [name for page in PAGES for name in shown(page)]
    assert sorted([*found, *NOT_SHOWN]) == programs


def test_every_program_is_run() -> None:
    """By the name that a test gives to it: a file, a module, or a command of manage.py."""
    others = set(Path(__file__).parent.glob("*.py")) - {Path(__file__)}
    tests = "".join(path.read_text(encoding="utf-8") for path in others)
    ways = ('{0}.py"', "{0}:app", "from {0} import", '"{0}"')
    programs = [path.stem for path in EXAMPLES.rglob("*.py")]
    unnamed = [stem for stem in programs if not any(way.format(stem) in tests for way in ways)]
    assert sorted(unnamed) == ["__init__", "models"], "the model is used by the command"
