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
    """A soft time limit, raised by the signal handler."""


class Strike:
    def __init__(self, function: Callable[..., Any], line: int) -> None:
        self._code: CodeType = function.__code__
        self._line = line
        self.struck = False

    def __enter__(self) -> Self:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._step if frame.f_code is self._code and not self.struck else None

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and frame.f_lineno == self._line and not self.struck:
            self.struck = True
            raise Soft
        return self._step


def lines_of(function: Callable[..., Any]) -> list[int]:
    """All at which it can be struck; a bare `try:` is no instruction, and no signal is looked for there."""
    source, first = inspect.getsourcelines(function)
    bare = {first + at for at, text in enumerate(source) if text.strip() == "try:"}
    found = {line for _, _, line in function.__code__.co_lines() if line is not None and line > first}
    return sorted(found - bare)
