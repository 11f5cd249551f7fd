"""An exception at a chosen line of dibs' own code, as a signal's handler may raise it there.

    with Strike(Stream._readable, line) as strike:      # of this thread
        ...
    strike.struck

It strikes once: where that line is about to run for the first time.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Self


class Soft(BaseException):
    """What the handler raises: a soft time limit."""


class Strike:
    def __init__(self, function: Callable[..., Any], line: int, *, behind: int | None = None) -> None:
        """`behind`: not before that line of the same function has run."""
        self._code: CodeType = function.__code__
        self._line = line
        self._behind = behind
        self.is_behind = behind is None
        self.struck = False

    def __enter__(self) -> Self:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._step if frame.f_code is self._code and not self.struck else None

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        self.is_behind = self.is_behind or frame.f_lineno == self._behind
        if event == "line" and frame.f_lineno == self._line and self.is_behind and not self.struck:
            self.struck = True
            raise Soft
        return self._step


def lines_of(function: Callable[..., Any]) -> list[int]:
    """All at which it can be struck; a bare `try:` is no instruction, and no signal is looked for there."""
    source, first = inspect.getsourcelines(function)
    bare = {first + at for at, text in enumerate(source) if text.strip() == "try:"}
    found = {line for _, _, line in function.__code__.co_lines() if line is not None and line > first}
    return sorted(found - bare)


def line_of(function: Callable[..., Any], words: str) -> int:
    """Where these words stand."""
    source, first = inspect.getsourcelines(function)
    (at,) = [at for at, text in enumerate(source) if words in text]
    return first + at


def parts_of(kind: type, name: str) -> list[Callable[..., Any]]:
    """That method of a class, and those of the same class that it calls, and so on."""
    found, waiting = {}, [name]
    while waiting:
        function = vars(kind).get(waiting.pop())
        if inspect.isfunction(function) and function.__name__ not in found:
            found[function.__name__] = function
            waiting += function.__code__.co_names
    return list(found.values())
