"""House rules that a tool can see."""

from __future__ import annotations

import ast
import doctest
import gc
import importlib
import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import dibs
import dibs.blocking
from architecture.sources import SRC, modules, tree

LONGEST_FILE = 450
LONGEST_DOCSTRING = 20
NOT_IN_A_RUN = (
    "asyncio", "dataclasses", "hashlib", "http", "inspect", "logging", "random", "shutil", "socket", "ssl",
    "subprocess",
)  # fmt: skip
"""`dibs run` never imports these, from its start to its end: it stands in front of other programs."""
NOT_AT_START = (*NOT_IN_A_RUN, "argparse", "ipaddress", "pathlib", "sqlite3", "urllib")
"""`import dibs` must not import these."""
WHO_IMPORTS = """
import builtins, sys, traceback
unwanted, plain, seen = set({unwanted!r}), builtins.__import__, {{}}
def spy(name, globals=None, locals=None, fromlist=(), level=0):
    found = plain(name, globals, locals, fromlist, level)
    for top in unwanted & sys.modules.keys() - seen.keys():
        seen[top] = []  # reading a stack may import by itself
        stack = [f"{{f.filename}}:{{f.lineno}} {{f.line}}" for f in traceback.extract_stack()[:-1]]
        seen[top] = [line for line in stack if "importlib._bootstrap" not in line]
    return found
builtins.__import__ = spy
{code}
for top, stack in sorted(seen.items()):
    print(top, "because of", " > ".join(stack[1:]))
"""


def test_a_file_reads_in_one_sitting() -> None:
    lines = {path.relative_to(SRC): len(path.read_text().splitlines()) for path in modules().values()}
    assert {path: count for path, count in lines.items() if count > LONGEST_FILE} == {}


def test_a_module_says_in_a_few_lines_what_it_is() -> None:
    texts = {module: (ast.get_docstring(tree(module)) or "").splitlines() for module in modules()}
    assert [module for module, lines in texts.items() if not 1 <= len(lines) <= LONGEST_DOCSTRING] == []


def _found(pattern: str) -> dict[str, list[str]]:
    texts = {module: path.read_text() for module, path in modules().items()}
    return {module: found for module, text in texts.items() if (found := re.findall(pattern, text, re.MULTILINE))}


def test_nothing_is_left_for_later() -> None:
    assert _found(r"^.*\b(?:TODO|FIXME|XXX)\b.*$") == {}


def test_a_shared_dict_is_copied_in_one_step() -> None:
    """In Python 3.11 making the pairs of `items()` may start a garbage collection, and then another thread runs."""
    assert _found(r"(?:list|tuple|dict|sorted)\(self\.[\w.]+\.items\(\)\)") == {}


def test_nothing_that_runs_foreign_text() -> None:
    """Words in prose are fine: this looks at names, as imported and as called."""
    wrong = []
    for module, node in [(name, node) for name in modules() for node in ast.walk(tree(name))]:
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [(node.module or "").partition(".")[0]]
        elif isinstance(node, ast.Name):
            named = [node.id]
        wrong += [f"{module}:{node.lineno} {name}" for name in named if name in FOREIGN]
    assert not wrong


FOREIGN = {"pickle", "_pickle", "marshal", "shelve", "dill", "yaml", "eval", "exec"}


def test_a_public_name_shows_how_it_is_used() -> None:
    for name in dibs.__all__:
        value = getattr(dibs, name)
        if value.__module__.startswith(dibs.blocking.__name__):
            text = inspect.getdoc(value) if "__doc__" in vars(value) or inspect.isfunction(value) else None
            assert text, f"dibs.{name} has no docstring"
            assert doctest.DocTestParser().get_examples(text), f"dibs.{name} has no example in its docstring"


def test_examples_are_true() -> None:
    """Only modules with a prompt in them are looked at: finding examples costs more than running them."""
    texts = {module: path.read_text() for module, path in modules().items()}
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # some leave a database open
        results = {
            module: doctest.testmod(importlib.import_module(module)) for module, text in texts.items() if ">>> " in text
        }
        gc.collect()
    assert {module: result.failed for module, result in results.items() if result.failed} == {}
    assert sum(result.attempted for result in results.values()) >= 50


def _unwanted(code: str, unwanted: tuple[str, ...] = NOT_AT_START) -> str:
    script = WHO_IMPORTS.format(unwanted=unwanted, code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=True)
    return done.stdout


def test_importing_dibs_is_cheap() -> None:
    assert _unwanted("import dibs") == ""
    assert "dibs/aio/__init__.py" in _unwanted("import dibs.aio"), "the spy on imports does not see"


def test_dibs_run_is_cheap(tmp_path: Path) -> None:
    words = ["run", "x", "--url", f"sqlite:///{tmp_path}/locks.db", "--", "true"]
    code = f"from dibs.cli.main import main; assert main({words!r}) == 0"
    assert _unwanted(code, NOT_IN_A_RUN) == ""
