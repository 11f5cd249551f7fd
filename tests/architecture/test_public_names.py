"""public_names.txt lists every name that users may type, so that a review shows each change.

To accept a change:  .venv/bin/python tests/architecture/test_public_names.py
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.bases import WrongWith

LIST = Path(__file__).with_name("public_names.txt")
HOW = "run: .venv/bin/python tests/architecture/test_public_names.py"
WITH = ("__enter__", "__exit__", "__aenter__", "__aexit__")


def listing() -> str:
    """Every public name, one a line, with its signature; of dibs.aio what differs from dibs."""
    lines = list(_module(dibs, dibs.__all__))
    known = {line.replace("dibs.", "dibs.aio.", 1) for line in lines}
    lines += [line for line in _module(dibs.aio, _own(dibs.aio)) if line not in known]
    return "\n".join(lines) + "\n"


def _own(module: ModuleType) -> list[str]:
    return [name for name in module.__all__ if getattr(module, name).__module__.startswith(module.__name__)]


def _module(module: ModuleType, names: list[str]) -> Iterator[str]:
    for name in sorted(names):
        value = getattr(module, name)
        yield from (
            _class(f"{module.__name__}.{name}", value)
            if inspect.isclass(value)
            else [f"{module.__name__}.{name}{_signature(value)}"]
        )


def _class(path: str, cls: type) -> Iterator[str]:
    shown = [base.__name__ for base in cls.__bases__ if base.__name__ in dibs.__all__ or base.__module__ == "builtins"]
    yield f"{path}({', '.join(name for name in shown if name != 'object')})"
    listed = {getattr(module, name) for module in (dibs, dibs.aio) for name in module.__all__} - {cls}
    elsewhere = {base for parent in listed.intersection(cls.__mro__) for base in parent.__mro__}
    ours = [base for base in cls.__mro__ if base.__module__.startswith("dibs") and base not in elsewhere]
    names = {name for base in ours for name in (*vars(base), *inspect.get_annotations(base))}
    for name in sorted(names):
        value = inspect.getattr_static(cls, name, None)
        if (name not in WITH and name.startswith("_")) or isinstance(value, WrongWith):
            continue
        if isinstance(value, property):
            assert value.fget is not None
            yield f"{path}.{name}: {inspect.signature(value.fget).return_annotation}"
        elif inspect.isfunction(value):
            yield f"{path}.{name}{_signature(value)}"
        else:
            yield f"{path}.{name}"


def _signature(function: Callable[..., Any]) -> str:
    """As in the source; `inspect` writes types given as text in quotes, and not in the same way in every version."""
    signature = inspect.signature(function)
    parts, starred = [], False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred = starred or one.kind is one.VAR_POSITIONAL
        sign = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        kind = "" if one.annotation is one.empty else f": {one.annotation}"
        default = "" if one.default is one.empty else f" = {one.default!r}"
        parts.append(f"{sign}{one.name}{kind}{default}")
    result = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    return f"({', '.join(parts)}){result}"


def test_the_public_names_are_those_that_are_written_down() -> None:
    change = list(difflib.unified_diff(LIST.read_text().splitlines(), listing().splitlines(), "written", "found", n=0))
    if change:
        pytest.fail("\n".join(["the public names have changed; if that is meant,", HOW, *change]))


if __name__ == "__main__":
    LIST.write_text(listing())
    print(f"wrote {LIST}: {len(listing().splitlines())} names")
