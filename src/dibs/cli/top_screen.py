"""The screen of `dibs top`: draws the view on the alternate screen with `rich`, and reads keys.

A frame is one write, and only visible rows are drawn. The terminal is restored at every end, and while the process is
stopped: signals only set a flag, and the loop acts on it. Foreign text is made printable, and is never markup.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import chain
from textwrap import wrap
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console
from rich.text import Text

import dibs
from dibs.cli.ls import kind, share
from dibs.cli.output import BY_SIGNAL, OK, age, describe, ordinal
from dibs.cli.terminal import suspend
from dibs.cli.top_view import Sample, View
from dibs.info import LockInfo, Participant, clip, duration, printable, who
from dibs.monitor.scan import SORTS, oldest_wait

_HIDE = "\x1b[?25l"
"""The cursor."""
_ENTER, _LEAVE = f"\x1b[?1049h{_HIDE}", "\x1b[0m\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _ALL_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[ -~]|\x1b|[^\x1b]", re.DOTALL)
_HALF_KEY = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_REST_OF_KEY = 0.05
"""Seconds in which the rest of an arrow key arrives; otherwise it was Esc."""
_NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "pgup", "\x1b[6~": "pgdn",
    "\x1b[H": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1b[4~": "end", "\x1b": "esc", "\r": "enter", "\n": "enter",
    "\x7f": "erase", "\b": "erase",
}  # fmt: skip
_LEAST_COLUMNS, _LEAST_ROWS = 30, 6
_BAR = 6
_COLUMNS = (("KIND", 13), ("HELD", 7), ("LEASE", _BAR + 8), ("WAITING", 7), ("LONGEST", 7), ("TOKEN", 16))
"""Title and width, in the order of the table, behind name and holder."""
_FIRST_TO_GO = ("TOKEN", "KIND", "LEASE", "LONGEST", "HELD")
_LEAST_TEXT = 30
"""Columns for name and holder; otherwise another column goes."""
_LONG = 400
_HELP = """\
up, down, PgUp, PgDn, Home, End   move
Enter                             open the lock: its holders and its queue
Esc                               back; clear the filter
s                                 sort by pressure, waiters, age or name
/                                 filter by a part of the name
?                                 this help
q                                 quit

Pressure is the sum of how long the waiters have waited. The lease bar shows
what is left of the most that was seen of this hold. Everything is as of the
last scan; changes between two scans are not seen."""


class Screen:
    def __init__(self, view: View) -> None:
        self._view = view
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._is_ascii = self._console.options.ascii_only
        self._heard: deque[Sample | BaseException] = deque(maxlen=1)
        self._signals: deque[int] = deque()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._page = 1

    def __enter__(self) -> Self:
        self._modes = termios.tcgetattr(0)
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
        self._before: dict[int, Any] = {number: signal.signal(number, self._note) for number in handled}
        self._wakeup = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            self._begin()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        signal.set_wakeup_fd(self._wakeup)
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _begin(self) -> None:
        tty.setcbreak(0)
        _write(_ENTER)

    def _end(self) -> None:
        with suppress(OSError, termios.error):  # the terminal hung up
            _write(_LEAVE)
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)

    def hear(self, told: Sample | BaseException) -> None:
        """Called by the thread that scans."""
        self._heard.append(told)
        with suppress(OSError):  # full: it wakes anyway; closed: nobody draws any more
            os.write(self._waker, b"\0")

    def run(self) -> int:
        """Until the user quits: the exit status."""
        while True:
            self._draw()
            ready, _, _ = select.select([0, self._wake], [], [])
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            status = self._obey_signals()
            if status is not None:
                return status
            while self._heard:
                told = self._heard.popleft()
                if isinstance(told, Sample):
                    self._view.show(told)
                elif isinstance(told, dibs.DibsError):
                    self._view.fail(told)
                else:
                    raise told
            if 0 in ready and not all(map(self._press, self._keys())):
                return OK

    def _obey_signals(self) -> int | None:
        while self._signals:
            number = self._signals.popleft()
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            if number in (signal.SIGTERM, signal.SIGHUP):
                return BY_SIGNAL + number
            if number == signal.SIGTSTP:
                self._end()
                suspend()
                with suppress(ValueError):
                    self._signals.remove(signal.SIGCONT)
                self._begin()
            elif number == signal.SIGCONT:  # after SIGSTOP: the alternate screen is still there, the modes may not be
                tty.setcbreak(0)
                _write(_HIDE)
        return None

    def _keys(self) -> Iterator[str]:
        """The keys that were pressed; "" at the end of the input. A key may arrive in pieces."""
        read = os.read(0, 4096)
        if not read:
            yield ""
        said = self._decode(read)
        while _HALF_KEY.search(said) and select.select([0], [], [], _REST_OF_KEY)[0] and (read := os.read(0, 4096)):
            said += self._decode(read)
        for found in _KEY.finditer(said):
            yield _NAMES.get(found[0], found[0])

    def _press(self, key: str) -> bool:
        """False: quit."""
        view = self._view
        if not key or (key == "q" and not (view.is_typing or view.is_helping)):
            return False
        if view.is_typing:
            self._type(key)
        elif view.is_helping:
            view.is_helping = False
        elif key == "?":
            view.is_helping = True
        elif key == "esc":
            if view.opened is None:
                view.wanted = ""
            view.opened, view.first = None, 0
            view.arrange()
        elif key == "enter" and view.opened is None and view.selected is not None:
            view.opened, view.first = view.selected.name, 0
        elif view.opened is None and key == "s":
            view.sort = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
            view.arrange()
        elif view.opened is None and key == "/":
            view.is_typing = True
        else:
            self._move(key)
        return True

    def _type(self, key: str) -> None:
        view = self._view
        if key == "enter":
            view.is_typing = False
        elif key == "esc":
            view.is_typing, view.wanted = False, ""
        elif key == "erase":
            view.wanted = view.wanted[:-1]
        elif len(key) == 1 and key.isprintable():
            view.wanted += key
        view.arrange()

    def _move(self, key: str) -> None:
        last = len(self._view.rows) - 1
        if self._view.opened is not None:
            info = self._view.info()
            last = len(info.holders) + len(info.waiters) - 1
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -self._page, "pgdn": self._page}
        steps |= {"home": -last - 1, "end": last + 1}
        if key in steps:
            self._view.move(steps[key], self._page, last)

    def _draw(self) -> None:
        size = os.get_terminal_size(1)
        columns, rows = size.columns or 80, size.lines or 24
        if columns < _LEAST_COLUMNS or rows < _LEAST_ROWS:
            lines = [Text("the window is too small"[:columns])]
        else:
            lines = self._lines(columns, rows)
        with self._console.capture() as frame:
            for line in lines[:rows]:
                line.truncate(columns)
                self._console.print(line, soft_wrap=True)
        *above, last = frame.get().split("\n")[:-1]
        # Erase before the text: behind a full line, a terminal would erase its last character.
        _write(_HOME + "".join(f"{_REST_OF_LINE}{line}\r\n" for line in above) + _ALL_BELOW + last)

    def _lines(self, columns: int, rows: int) -> list[Text]:
        view = self._view
        heading = [(line, self._shown(line)) for line in view.heading()]
        parts = (wrap(said, columns) if line == view.error else [said] for line, said in heading)
        lines = [Text(part) for part in chain.from_iterable(parts)][: rows - 4]
        if view.error:
            lines[0].stylize("bold red")
        if view.is_helping:
            return [*lines, Text(), *map(Text, _HELP.splitlines())]
        self._page = rows - len(lines) - 2
        if view.opened is not None:
            lines += self._open_lock(view.info())
        else:
            lines += self._table(columns)
        lines += [Text()] * (rows - 1 - len(lines))
        return [*lines, self._foot()]

    def _shown(self, text: str) -> str:
        """Printable, and in characters that the terminal has: it must be as wide as it is taken for."""
        encoding = self._console.encoding
        return printable(text).encode(encoding, "backslashreplace").decode(encoding)

    def _foot(self) -> Text:
        view = self._view
        if view.is_typing:
            return Text(f"filter: {self._shown(view.wanted)}_", style="bold")
        if view.opened is not None:
            return Text("Esc back   q quit", style="dim")
        only = f'   only names with "{self._shown(view.wanted)}" (Esc clears)' if view.wanted else ""
        return Text(f"by {view.sort}{only}   s sort  / filter  Enter open  ? help  q quit", style="dim")

    def _table(self, columns: int) -> Iterator[Text]:
        view = self._view
        shown = list(_COLUMNS)
        for title in _FIRST_TO_GO:
            if columns - sum(width + 2 for _, width in shown) >= _LEAST_TEXT:
                break
            shown = [one for one in shown if one[0] != title]
        room = columns - sum(width + 2 for _, width in shown) - 2
        widths = [room - room // 2, room // 2, *(width for _, width in shown)]
        yield self._joined(["NAME", "HOLDER", *(title for title, _ in shown)], widths, "bold")
        view.scroll(self._page)
        assert view.sample is not None or not view.rows
        if view.sample is not None and not view.rows:
            yield Text("No name matches the filter." if view.wanted else "No lock is held or waited for.")
        for at, info in enumerate(view.rows[view.first : view.first + self._page], view.first):
            assert view.sample is not None
            cells = self._cells(info, view.sample.scan.as_of)
            style = "yellow" if info.waiters else "dim"
            line = self._joined([cells["NAME"], cells["HOLDER"], *(cells[title] for title, _ in shown)], widths, style)
            if at == view.cursor:
                line.stylize("reverse")
            yield line

    def _cells(self, info: LockInfo, now: datetime) -> dict[str, str]:
        cells = {"NAME": clip(info.name, _LONG), "HOLDER": "nobody", "KIND": kind(info), "HELD": "", "LEASE": ""}
        if info.holders:
            first, more = info.holders[0], len(info.holders) - 1
            cells["HOLDER"] = (f"+{more} " if more else "") + who(first)
            cells["HELD"], cells["LEASE"] = age(first, now), self._lease(info, first)
            cells["TOKEN"] = str(first.token or "")
        if info.waiters:
            cells["WAITING"], cells["LONGEST"] = str(len(info.waiters)), duration(oldest_wait([info], now))
        return {"TOKEN": "", "WAITING": "", "LONGEST": "", **cells}

    def _lease(self, info: LockInfo, one: Participant) -> str:
        full = round(_BAR * self._view.lease(info, one))
        done, left = ("#", ".") if self._is_ascii else ("█", "░")
        return f"{done * full}{left * (_BAR - full)} {duration(round(one.remaining, 1))}"

    def _open_lock(self, info: LockInfo) -> Iterator[Text]:
        assert self._view.sample is not None
        now = self._view.sample.scan.as_of
        state = f"{kind(info)}, {len(info.holders)} holding, {len(info.waiters)} waiting"
        state = state if info.holders or info.waiters else "free"
        yield Text(self._shown(f'"{clip(info.name, _LONG)}": {state}'), style="bold")
        everyone = [*(("holds", one) for one in info.holders)]
        everyone += [(ordinal(place), one) for place, one in enumerate(info.waiters, 1)]
        self._view.first = first = max(min(self._view.first, len(everyone) - self._page), 0)  # the queue may be shorter
        for place, one in everyone[first : first + self._page]:
            lease = f"  lease {self._lease(info, one)}" if place == "holds" else ""
            thread = f"  thread {clip(one.thread, 60)}" if one.thread not in ("", "MainThread") else ""
            said = f"{place:<6} token {one.token or '-'}  {describe(one, now)}  {share(info, one)}"
            more = " ".join(f"{clip(key, 60)}={clip(value, 60)}" for key, value in one.info.items() if key != "command")
            yield Text(
                self._shown(f"{said.rstrip()}{lease}{thread}  {more}".rstrip()),
                style="" if place == "holds" else "yellow",
            )

    def _joined(self, cells: list[str], widths: list[int], style: str) -> Text:
        line = Text(style=style)
        for cell, width in zip(cells, widths, strict=True):
            part = Text(self._shown(cell))
            part.truncate(width, overflow="crop" if self._is_ascii else "ellipsis", pad=True)
            line.append_text(part).append("  ")
        return line


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
