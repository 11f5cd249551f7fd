"""Every Python block in a document passes `mypy --strict`, and pyright in strict mode, as a user has them.

Each block is a program of its own, at the lines where it stands in its page: a complaint names the page and its line.
A block that imports a package without types, such as Celery, is not asked for types that only that package could give.

    .venv/bin/python -m pytest tests/typing/test_snippets.py
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.test_docs import PAGES, ROOT, Block, blocks_of

WRONG = "import dibs\ndibs.connect().lock(5)\ndef pay(invoice): ...\n"
"""A program that both must complain of, also of the missing type: the check itself can fail."""
STRICT = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    "include": ["."],
    "extraPaths": [str(ROOT / "src")],
    "useLibraryCodeForTypes": False,  # what it guesses of a package without types may be wrong
}
LESS = """\
# pyright: standard, reportMissingImports=false, reportMissingModuleSource=false
# mypy: allow-untyped-decorators, allow-subclassing-any, disable-error-code="import-untyped,import-not-found"
# mypy: no-warn-return-any
""".splitlines()
"""The first lines of a program that imports a package without types."""
PARTLY_TYPED = frozenset({"redis"})
"""Says that it has types; some of its functions have none."""


def write(place: Path) -> dict[str, Path]:
    """One file for each block; gives the page of each."""
    pages = {}
    for page in PAGES:
        for block in blocks_of(page):
            path = page.relative_to(ROOT)
            name = re.sub(r"\W", "_", f"{path.with_suffix('')}_{block.line}") + ".py"
            head = LESS if needs_less(block) else []
            assert block.line > len(LESS), f"{path} begins with a block"
            (place / name).write_text("\n".join([*head, *[""] * (block.line - 1 - len(head)), block.code]))
            pages[name] = path
    (place / "wrong.py").write_text(WRONG)
    return pages


def needs_less(block: Block) -> bool:
    tops: set[str] = set()
    for node in ast.walk(ast.parse(block.code, str(block.page))):
        if isinstance(node, ast.Import):
            tops |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            tops.add((node.module or "").partition(".")[0])
    return any(not is_typed(top) for top in tops)


@cache
def is_typed(top: str) -> bool:
    """Whether a package has types of its own, or stubs beside it; one that is not installed has none."""
    if top in sys.stdlib_module_names or top == "dibs":
        return True
    if top in PARTLY_TYPED:
        return False
    spec = find_spec(top)
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    stubs = [place.with_name(f"{top}-stubs") for place in places]
    return any((place / "py.typed").exists() for place in places) or any(place.is_dir() for place in stubs)


def judge(pages: dict[str, Path], complaints: list[tuple[str, int, str]]) -> None:
    """Each complaint is the name of a file, a line and a text."""
    assert {line for name, line, _ in complaints if name == "wrong.py"} == {2, 3}, "the checker does not see"
    assert len(pages) > 20
    wrong = [f"{pages[name]}:{line}: {text}" for name, line, text in complaints if name != "wrong.py"]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("mypy")  # with test_typing.py: the second of them need not read dibs again
def test_mypy_accepts_every_block(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pages = write(tmp_path)
    kept = getattr(request.config, "cache", None)
    cached = kept.mkdir("mypy") if kept else tmp_path / "cache"
    words = ["--strict", "--config-file=", f"--cache-dir={cached}", "--python-version=3.11", "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, *sorted(["wrong.py", *pages])],
        cwd=tmp_path, env={"MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    found = [re.fullmatch(r"(\w+\.py):(\d+): error: (.*)", line) for line in done.stdout.splitlines()]
    judge(pages, [(one[1], int(one[2]), one[3]) for one in found if one])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_pyright_accepts_every_block(tmp_path: Path) -> None:
    """By basedpyright: its strict mode is pyright's, and PyPI has all that it needs."""
    pages = write(tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(STRICT))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)["generalDiagnostics"]
    errors = [one for one in said if one["severity"] == "error"]
    judge(pages, [(Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"]) for one in errors])
