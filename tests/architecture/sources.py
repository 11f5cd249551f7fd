"""The source tree as the architecture tests see it: modules, and who imports whom, read with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"


@dataclass(frozen=True)
class Import:
    """One imported module, as written in one line."""

    importer: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in sorted((SRC / "dibs").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    assert "dibs.core.rule" in found, "the package has moved: these tests look at nothing"
    return found


@cache
def tree(module: str) -> ast.Module:
    path = modules()[module]
    return ast.parse(path.read_text(), str(path))


@cache
def imports(module: str) -> tuple[Import, ...]:
    """Also those inside functions."""
    return tuple(found for node in tree(module).body for found in _imports_in(module, node))


def ours(module: str) -> tuple[Import, ...]:
    """Only imports of dibs itself."""
    return tuple(found for found in imports(module) if found.target.partition(".")[0] == "dibs")


def _imports_in(module: str, node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(module, alias.name, node.lineno)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(module, node)
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield Import(module, full if full in modules() else base, node.lineno)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imports_in(module, child)


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_package = modules()[module].name == "__init__.py"
    parts = module.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])
