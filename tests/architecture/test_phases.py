"""Tests that run in parallel do not depend on the speed of the machine: others are marked `alone` or `gate`.

In the source of each test, and of the functions and fixtures of tests/ that it uses, literal leases below ten seconds
are found, timeouts that are neither brief nor patient, bounds on measured time, and the contract suite's short leases.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from architecture.sources import ROOT, SRC

TESTS = ROOT / "tests"
CONTRACT = SRC / "dibs" / "testing" / "contract"
STANDSTILL = 10.0  # seconds for which a process may stand still beside others
BRIEF = 0.2  # a timeout up to here is meant to end
LEAST = {"lease": 0.0, "timeout": BRIEF}
ELSEWHERE = {"alone", "gate", "soak", "timed"}  # `timed`: in parallel only on the memory store, in virtual time
VIRTUAL = ("sim", "lab", "mutants")  # the time is virtual, or scripts/test does not run them
CLOCKS = {"monotonic", "perf_counter", "seconds"}
MEASURES = {"Stopwatch", "promise", "lasted"}
WAITS = {"join", "wait", "result"}  # methods whose argument is a timeout in seconds
SHORT = {"brief", "lasting", "short", "stand_still"}  # leases of the contract suite
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Part(NamedTuple):
    path: Path
    name: str  # of a function or class at the top of the file, or Class.method


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def _parts(path: Path) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in _tree(path).body:
        if isinstance(node, Function | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}": one for one in node.body if isinstance(one, Function)}
    return found


@cache
def _constants(path: Path) -> dict[str, ast.expr]:
    assigned = [node for node in _tree(path).body if isinstance(node, ast.Assign)]
    return {name.id: node.value for node in assigned for name in node.targets if isinstance(name, ast.Name)}


@cache
def _imported(path: Path) -> dict[str, Part]:
    """The names that a file imports from tests/."""
    found = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            source = TESTS / f"{node.module.replace('.', '/')}.py"
            if source.exists():
                found |= {alias.asname or alias.name: Part(source, alias.name) for alias in node.names}
    return found


def _number(path: Path, node: ast.expr | None) -> float:
    """A literal, or a constant of this file or of one that it imports; 0: another expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if not isinstance(node, ast.Name):
        return 0.0
    if node.id in _constants(path):
        return _number(path, _constants(path)[node.id])
    source = _imported(path).get(node.id)
    return _number(source.path, ast.Name(source.name)) if source else 0.0


def _used(part: Part) -> Iterator[Part]:
    for node in ast.walk(_parts(part.path)[part.name]):
        word = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
        yield from (Part(path, word) for path in _homes(part.path) if word in _parts(path))
        if (found := _imported(part.path).get(word)) and found.name in _parts(found.path):
            yield found


@cache
def _homes(path: Path) -> list[Path]:
    above = [parent / "conftest.py" for parent in path.parents if parent.is_relative_to(TESTS)]
    return [path, *(one for one in above if one.exists())]


def _finding(path: Path, node: ast.AST) -> str:
    if isinstance(node, ast.keyword) and node.arg in LEAST:
        return ast.unparse(node) if LEAST[node.arg] < _number(path, node.value) < STANDSTILL else ""
    if isinstance(node, ast.Call) and node.args and getattr(node.func, "attr", "") in WAITS:
        return ast.unparse(node) if BRIEF < _number(path, node.args[0]) < STANDSTILL else ""
    if isinstance(node, ast.Compare) and any(isinstance(op, ast.Lt | ast.LtE) for op in node.ops):
        called = {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}
        is_short = any(0 < _number(path, side) < STANDSTILL for side in (node.left, *node.comparators))
        return ast.unparse(node) if called & CLOCKS and is_short else ""
    if isinstance(node, ast.Attribute):
        return node.attr if "contract" in path.parts and node.attr in SHORT else ""
    return node.id if isinstance(node, ast.Name) and node.id in MEASURES else ""


def _marks(nodes: list[ast.expr]) -> set[str]:
    """Without those of parameters: a test of which only some variants run elsewhere is examined."""
    marks = [ast.unparse(node.func if isinstance(node, ast.Call) else node) for node in nodes]
    return set(re.findall(r"\w+", " ".join(marks)))


def _in_parallel(path: Path) -> Iterator[Part]:
    for name, node in _parts(path).items():
        owner, _, test = name.rpartition(".")
        if isinstance(node, Function) and test.startswith("test_"):
            marks = [*node.decorator_list, *getattr(_parts(path).get(owner), "decorator_list", [])]
            marks += [mark for mark in [_constants(path).get("pytestmark")] if mark]
            if not _marks(marks) & ELSEWHERE:
                yield Part(path, name)


def findings(paths: Iterable[Path]) -> set[str]:
    seen: set[Part] = set()
    left = [part for path in paths for part in _in_parallel(path)]
    while left:
        if (part := left.pop()) not in seen:
            seen.add(part)
            left += _used(part)
    found = (
        (part, node, _finding(part.path, node)) for part in seen for node in ast.walk(_parts(part.path)[part.name])
    )
    return {f"{part.path}:{getattr(node, 'lineno', 0)} {part.name}: {text}" for part, node, text in found if text}


@pytest.mark.slow
def test_no_short_lease_and_no_bound_on_time_beside_others() -> None:
    paths = [*TESTS.rglob("test_*.py"), *CONTRACT.glob("test_*.py")]
    paths = [path for path in paths if not path.relative_to(ROOT).parts[1].startswith(VIRTUAL)]
    assert len(paths) > 100, "the tests have moved: nothing is looked at"
    assert sorted(findings(paths)) == []


PLANTED = """
import pytest
LEASE = 2
def helper(lock, lease=LEASE): lock.renew(lease=LEASE)
def test_found(world, thread): helper(world); world.acquire(timeout=5); thread.join(3); world.client(lease=world.short)
@pytest.mark.parametrize("one", [1, pytest.param(2, marks=pytest.mark.gate)])
def test_a_variant(one): assert time.monotonic() - one < 3
class TestClass:
    def test_method(self): Stopwatch()
@pytest.mark.alone
def test_alone(self): Stopwatch()
def test_patient(thread): client(lease=30).acquire(timeout=0.05); thread.join(60)
"""


def test_planted_cases_are_found(tmp_path: Path) -> None:
    (tmp_path / "contract").mkdir()
    (path := tmp_path / "contract" / "test_planted.py").write_text(PLANTED)
    assert {line.rpartition("planted.py:")[2].partition(" ")[2] for line in findings([path])} == {
        "helper: lease=LEASE", "test_found: short", "test_found: thread.join(3)", "test_found: timeout=5",
        "test_a_variant: time.monotonic() - one < 3", "TestClass.test_method: Stopwatch",
    }  # fmt: skip
