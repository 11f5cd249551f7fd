"""Random mutants, the same for the same seed: a condition negated, a constant changed, a statement dropped.

Python is changed by its syntax tree, Lua and SQL by single lines. What nobody could notice is left alone as far as that
can be told: docstrings, annotations, protocols, texts of errors and logs, constructors, how things are shown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import NamedTuple

from mutants.catalogue import SOURCE, Change, Mutant

SEED = 17
_PLACES = (
    ("core", ("core/*.py", "core/kinds/*.py")),
    ("verbs", ("backends/common/atomic_queue.py", "backends/common/atomic_cells.py", "backends/sqlite/table.py")),
    ("core", ()),
    ("redis", ("backends/redis/lua/*.lua",)),
    ("postgresql", ("backends/postgresql/sql/*.sql",)),
    ("mysql", ("backends/mysql/sql/*.sql",)),
)
"""In turns, so that half of them are in Python and every language has its share."""
_LEFT_OUT = frozenset(
    {"log.py", "runtime.py", "queue.py", "tables.sql", "walk_declare.sql"}  # words, protocols, declarations
)
_SHOWN = frozenset({"__init__", "__repr__", "describe", "doctor", "loss", "promises", "dangers", "findings", "too_few"})
_TELLING = frozenset({"error", "log", "Finding", "mismatch", "damaged", "StoreError", "StoreUnavailable"})


class Edit(NamedTuple):
    """Replaces a text between two places in it; `line` is the number of the line."""

    what: str
    line: int
    start: int
    end: int
    new: str


def randomly(count: int, seed: int = SEED) -> list[Mutant]:
    random = Random(seed)
    pools: dict[str, list[tuple[str, str, Edit]]] = {area: [] for area, _ in _PLACES}
    for area, patterns in _PLACES:
        for file in sorted(file for pattern in patterns for file in SOURCE.glob(pattern)):
            if file.name not in _LEFT_OUT:
                text, path = file.read_text(encoding="utf-8"), str(file.relative_to(SOURCE))
                pools[area] += [(path, text, edit) for edit in edits(path, text)]
    for pool in pools.values():
        random.shuffle(pool)
    turns = cycle([area for area, _ in _PLACES])
    drawn = [pools[area].pop() for area, _ in zip(turns, range(count), strict=False) if pools[area]]
    return [_mutant(f"random {seed}.{number}", *one) for number, one in enumerate(drawn, 1)]


def edits(path: str, text: str) -> list[Edit]:
    if path.endswith(".py"):
        return [*_Walk(text).found, *(_in_statements(text) if path.endswith("table.py") else ())]
    return list(_in_lines(text, is_lua=path.endswith(".lua"), nothing=_NOTHING.get(path.split("/")[1], "")))


def _another(number: int) -> str:
    return str(number * 3 if number > 1 else number + 1)


def _mutant(name: str, path: str, text: str, edit: Edit) -> Mutant:
    """The whole file is the old text: a line of it may stand there twice."""
    changed = text[: edit.start] + edit.new + text[edit.end :]
    return Mutant(f"{name} ({edit.what}, line {edit.line})", (Change(path, "", text, changed),))


class _Walk(ast.NodeVisitor):
    """Every edit of a Python text."""

    def __init__(self, text: str) -> None:
        self.found: list[Edit] = []
        self._text = text
        self._begins = [0]
        for line in text.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))
        self._lines = text.splitlines()
        self._depth = 0
        self.visit(ast.parse(text))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if not any("Protocol" in ast.unparse(base) for base in node.bases):
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name not in _SHOWN:
            self._depth += 1
            for part in node.body:
                self.visit(part)
            self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """It states what cannot be otherwise."""

    def visit_Raise(self, node: ast.Raise) -> None:
        self._edit("drop", node, "pass")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in _TELLING and "log()" not in ast.unparse(node.func):
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text for people."""

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node.test, ast.Constant | ast.BoolOp) and ast.unparse(node.test) != "TYPE_CHECKING":
            self._negate(node.test)
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self.generic_visit(node)

    visit_While = visit_IfExp = visit_If  # noqa: N815

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for value in node.values:
            if not isinstance(value, ast.Constant):
                self._negate(value)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if self._depth and isinstance(node.value, bool):
            self._edit("constant", node, str(not node.value))
        elif self._depth and isinstance(node.value, int):
            self._edit("constant", node, _another(node.value))
        elif self._depth and isinstance(node.value, float):
            self._edit("constant", node, str(node.value * 3 if node.value else 1.0))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await) and "log()" not in ast.unparse(node):
            self._edit("drop", node, "pass")
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign | ast.AugAssign) -> None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if self._depth and (isinstance(target, ast.Attribute | ast.Subscript) or isinstance(node, ast.AugAssign)):
            self._edit("drop", node, "pass")
        self.visit(node.value)

    visit_AugAssign = visit_Assign  # noqa: N815

    def visit_Delete(self, node: ast.Delete) -> None:
        self._edit("drop", node, "pass")

    def _negate(self, node: ast.expr) -> None:
        start, end = self._span(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            new = self._text[slice(*self._span(node.operand))]
        else:
            new = f"(not ({self._text[start:end]}))"
        self.found.append(Edit("negate", node.lineno, start, end, new))

    def _edit(self, what: str, node: ast.stmt | ast.expr, new: str) -> None:
        self.found.append(Edit(what, node.lineno, *self._span(node), new))

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def _place(self, line: int, column: int) -> int:
        """Columns of a syntax tree count bytes."""
        return self._begins[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


_NOTHING = {"mysql": "DO 0;", "postgresql": "NULL;"}
_OPPOSITE = {"<=": ">", ">": "<=", ">=": "<", "<": ">=", "<>": "=", "==": "~=", "~=": "=="}
_CONDITION = re.compile(
    r"^\s*(?:(?:els)?e?if|if|while|IF|ELSE?IF|WHILE)\s(.+?)\s(?:then|do|THEN|DO)\b|^\s*EXIT WHEN (.+);$"
)
_COMPARED = re.compile(r"(?<= )(<=|>=|<>|==|~=|<|>)(?= )")
_NUMBER = re.compile(r"(?<![\w.$-])(?<!> )(?<!>= )(?<!SELECT )\d+(?![\w.])")
_TEXT = re.compile(r"'[^']*'")
_STATEMENT = re.compile(
    r"^\s*(?:(?:UPDATE|DELETE|INSERT|REPLACE|PERFORM|CALL|KILL|SET|DO) .*;|\w+_ := .*;"  # SQL
    r"|[\w.\[\]]+ = (?!.*\()[^{]*|[\w.]+\(.*\))$"  # Lua
)
_DECLARED = re.compile(
    r"DECLARE|CREATE|RETURNS|VARBINARY|BIGINT|TRANSACTION|^\s*local [A-Z]|dibs-damaged|ERRCODE|/\*!|/\*M!"
)


def _in_lines(text: str, *, is_lua: bool, nothing: str) -> Iterator[Edit]:
    begin, ahead = 0, ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        code = re.sub(r"--.*", "", line.rstrip("\n"))
        starts = is_lua or re.search(r"(;|\b(?:THEN|ELSE|LOOP|BEGIN|DO))\s*$", ahead)
        if code.strip() and not _DECLARED.search(code) and not line.startswith("--"):
            if (match := _CONDITION.match(code)) and not _COMPARED.search(match[match.lastindex or 0]):
                start, end = match.span(match.lastindex or 0)
                yield Edit(
                    "negate", number, begin + start, begin + end, f"{'not' if is_lua else 'NOT'} ({code[start:end]})"
                )
            for match in _COMPARED.finditer(code):
                yield Edit("negate", number, begin + match.start(), begin + match.end(), _OPPOSITE[match[0]])
            for match in _NUMBER.finditer(_TEXT.sub(lambda text: "'" * len(text[0]), code)):
                yield Edit("constant", number, begin + match.start(), begin + match.end(), _another(int(match[0])))
            if starts and _STATEMENT.match(code) and code.count("(") == code.count(")"):
                yield Edit("drop", number, begin, begin + len(code), nothing)
        if code.strip():
            ahead = code
        begin += len(line)


def _in_statements(text: str) -> Iterator[Edit]:
    """The SQL in a Python text: one condition of a statement after the other."""
    begin = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if re.search(r"\"(?:SELECT|DELETE|UPDATE) ", line):
            for match in re.finditer(r" (=|>|<=|<|>=)(?= \?)", line.partition(" WHERE ")[2]):
                place = begin + line.index(" WHERE ") + len(" WHERE ") + match.start(1)
                yield Edit("negate", number, place, place + len(match[1]), {"=": "<>", **_OPPOSITE}[match[1]])
        begin += len(line)
