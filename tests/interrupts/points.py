"""KeyboardInterrupt at a chosen point of dibs' own code, by `sys.settrace`.

A point is where CPython 3.11 checks for signals: at the entry of a function, after a call that is not a Python
function's (those are entered and left without a check, as are coroutines when they are made), and at backward jumps.
Two kinds of points are left out because no signal can reach them: the end of a generator that nobody wants any more
(tracing calls that an entry), and the few places where the instruction that checks and the next one have different
exception handlers.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

import dibs

PACKAGE = str(Path(dibs.__file__).parent)
ENDING = (".__exit__", ".release")
"""Public functions that end a hold: an interrupt at their entry comes before any code of dibs runs."""


@dataclass(frozen=True)
class Point:
    """The place that an interrupt hit."""

    event: str
    function: str
    file: str
    line: int
    outermost: bool
    """No other function of dibs had been entered."""
    first: bool
    """At the entry of the function, or at the first line of its body."""

    @property
    def before_ours(self) -> bool:
        """The user's code was told to end the hold, or had just got it, and dibs had not begun: Python's own gap."""
        if self.function.endswith("Hold.__enter__"):  # `with lock.acquire()`: between the two
            return True
        return self.first and self.outermost and self.function.endswith(ENDING)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function} ({self.event})"


class Interrupt:
    """Within its block the n-th point raises KeyboardInterrupt, which the block swallows; n = 0: all are only seen."""

    def __init__(self, n: int) -> None:
        self._left, self._only_sees = n, n == 0
        self._before: Any = None
        self._last: dict[FrameType, int] = {}
        """The last instruction of each frame."""
        self._called: dict[FrameType, bool] = {}
        """Whether what that instruction called was called through C; absent: nothing was seen."""
        self._generators: set[FrameType] = set()
        """The generators that were entered before."""
        self.point: Point | None = None
        self.seen: list[Point] = []
        """If none is to be hit."""

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        gc.disable()  # Python drops what is raised in a finaliser, here of what other tests left
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> bool:
        sys.settrace(self._before)
        sys.setprofile(None)
        gc.enable()
        self._last.clear()
        self._called.clear()
        self._generators.clear()
        return kind is KeyboardInterrupt and self.point is not None

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "c_call":
            self._called[frame] = True

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "call" and frame.f_back is not None:
            self._called.setdefault(frame.f_back, frame.f_code.co_name == "__init__")
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name == "__del__":
            return None  # what is raised in __del__ Python reports and drops
        if event == "call":
            frame.f_trace_opcodes = True
        if self._is_point(frame, event):
            if self._only_sees:
                self.seen.append(self._point(frame, event))
            self._left -= 1
            if self._left == 0:
                self.point = self._point(frame, event)
                raise KeyboardInterrupt
        if event == "return" and not frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
            self._last.pop(frame, None)  # a frame that is kept keeps what it had, such as a permit
            self._called.pop(frame, None)
        return self._trace

    def _is_point(self, frame: FrameType, event: str) -> bool:
        if event == "call":
            return not self._goes_on(frame)
        if event != "opcode":
            return False
        last, self._last[frame] = self._last.get(frame), frame.f_lasti
        through_c = self._called.pop(frame, None)
        return last is not None and checks(frame.f_code).looks(last, frame.f_lasti, through_c)

    def _goes_on(self, frame: FrameType) -> bool:
        """A generator is entered again, to go on or to end: what is raised at its end Python reports and drops."""
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return False
        again = frame in self._generators
        self._generators.add(frame)
        return again

    @staticmethod
    def _point(frame: FrameType, event: str) -> Point:
        code, outer, outermost = frame.f_code, frame.f_back, True
        while outer is not None:
            outermost = outermost and not outer.f_code.co_filename.startswith(PACKAGE)
            outer = outer.f_back
        first = frame.f_lineno <= first_line(code)
        return Point(event, code.co_qualname, code.co_filename[len(PACKAGE) + 1 :], frame.f_lineno, outermost, first)


@cache
def first_line(code: CodeType) -> int:
    """The first line of the body; a decorator has a line of its own above."""
    return list(dict.fromkeys(line for _, _, line in code.co_lines() if line is not None))[:2][-1]


class _Checks:
    """The places where a function's code checks for signals."""

    def __init__(self, code: CodeType) -> None:
        self._calls: dict[int, str] = {}
        self._looks: set[int] = set()
        name = ""
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME"):
                name = step.argval
            elif step.opname in ("CALL", "CALL_KW"):
                self._calls[step.offset] = name
            elif step.opname == "CALL_FUNCTION_EX" or "JUMP_BACKWARD" in step.opname:
                self._looks.add(step.offset)
        self._handlers = list(_handlers(code))

    def looks(self, before: int, after: int, through_c: bool | None) -> bool:
        """Between these two instructions; `through_c`: see Interrupt."""
        if before in self._calls:
            if through_c is None:  # a type or a partial was called; or a coroutine was made
                through_c = self._calls[before] not in coroutine_functions()
        elif before not in self._looks:
            return False
        return through_c is not False and self._handler(before) == self._handler(after)

    def _handler(self, offset: int) -> int | None:
        return next((target for start, end, target in self._handlers if start <= offset < end), None)


@cache
def checks(code: CodeType) -> _Checks:
    return _Checks(code)


@cache
def coroutine_functions() -> frozenset[str]:
    """The names of all coroutine functions of dibs: calling one only makes a coroutine."""
    found = set()
    for path in Path(PACKAGE).rglob("*.py"):
        waiting = [compile(path.read_text(), str(path), "exec")]
        while waiting:
            code = waiting.pop()
            if code.co_flags & inspect.CO_COROUTINE:
                found.add(code.co_name)
            waiting += [const for const in code.co_consts if isinstance(const, CodeType)]
    return frozenset(found)


def _handlers(code: CodeType) -> Iterator[tuple[int, int, int]]:
    """Start, end and target of the exception table's rows: see Objects/exception_handling_notes.txt of CPython."""
    table = iter(code.co_exceptiontable)

    def number(first: int) -> int:
        value, more = first & 63, first & 64
        while more:
            byte = next(table)
            value, more = value << 6 | byte & 63, byte & 64
        return value

    for first in table:
        start = number(first) * 2
        end = start + number(next(table)) * 2
        target = number(next(table)) * 2
        number(next(table))
        yield start, end, target


@dataclass
class Case:
    """One interrupted run."""

    point: Point
    client: dibs.Client
    names: tuple[str, ...]
    is_free: bool
    """Nothing of it stands in the store."""
    kept: tuple[dibs.Hold, float] | None = None
    """A hold taken afterwards, and how much of its lease was left then."""
