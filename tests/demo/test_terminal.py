"""The demo on a terminal: a picture that fits, and nothing of it on the screen afterwards."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from demo.plays import left_behind
from demo.terminal import Terminal, terminal
from process.children import PATIENCE

pytestmark = pytest.mark.gate
STAYS = re.compile(
    r"3 workers, 5 turns each, one lock, one resource\. Lease 4 s, seed 7\."
    r"| +\d+\.\d\d s  worker-\d.*"  # an event
    r"|  [a-z][a-z -]+ {2,}\d.*"  # a row of the proof
    r"|PROVED in this run: no two workers held the lock at the same time\."
    r"|failed: interrupted"
    r"|"
)


@pytest.fixture
def place(environment: dict[str, str]) -> dict[str, str]:
    """A terminal with colours and UTF-8."""
    unset = ("NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING", "PYTHONUTF8", "COLUMNS", "LINES")
    kept = {name: value for name, value in environment.items() if name not in unset}
    return {**kept, "TERM": "xterm", "LC_ALL": "C.UTF-8"}


def left_on_the_screen(there: Terminal) -> list[str]:
    """The lines on the screen. None is part of the picture, and the terminal is as it was."""
    screen = there.screen
    assert (screen.cursor, screen.wraps, screen.column) == (True, True, 0)
    lines = screen.text().splitlines()
    assert [line for line in lines if not STAYS.fullmatch(line)] == []
    return lines


def test_a_picture_and_then_the_story_and_the_proof(place: dict[str, str], tmp_path: Path) -> None:
    with terminal(place, columns=130) as there:
        assert there.finish() == 0
    assert len(there.frames) > 5
    assert there.screen.cut == 0
    for frame in there.frames:
        assert len(re.findall(r"^  ► worker-\d .* holds, token \d+$", frame, re.MULTILINE)) <= 1
    all_frames = "\n".join(there.frames)
    for shown in (
        r"^  \d+ of 15 turns   \d+ handovers   \d+\.\d s$",
        r"^  ► worker-\d  █*░*  \d/5  ─*[─●✕‖!]*●  holds, token \d+$",
        r"^    worker-\d  █*░*  \d/5  [─●✕‖!]+  1st in the queue$",
        r"^  ✕ worker-\d  █*░*  \d/5  [─●‖!]*✕[─●]*  killed$",
        r"^  ‖ worker-\d  █*░*  \d/5  [─●✕]*‖[─●]*  paused",
        r"^    worker-\d  █+  5/5  [─●✕‖!]+  done$",
        r"^ +\d\.\d\d s  worker-\d was killed while it held the lock \(token \d+\)$",
    ):
        assert re.search(shown, all_frames, re.MULTILINE), shown
    lines = left_on_the_screen(there)
    story = (
        re.search("killed.*was started again.*", " ".join(lines)),
        re.search("paused.*continues.*refused", " ".join(lines)),
    )
    assert all(story)
    assert lines[0].startswith("3 workers")
    assert lines[-1].startswith("PROVED")
    times = [float(line.split(" s  ")[0]) for line in lines if " s  worker-" in line]
    assert times == sorted(times)
    assert len(times) >= 5
    assert left_behind(tmp_path) == []


def test_without_colours_it_fits_into_a_narrow_terminal(place: dict[str, str]) -> None:
    there = fits({**place, "NO_COLOR": "1"}, columns=44, rows=50)
    assert not there.screen.styled
    assert not there.seen.isascii()


def test_in_ascii_it_fits_into_a_low_terminal(place: dict[str, str]) -> None:
    there = fits({**place, "LC_ALL": "C"}, columns=80, rows=9)
    assert there.screen.styled
    assert there.seen.isascii()


def fits(place: dict[str, str], columns: int, rows: int) -> Terminal:
    with terminal(place, columns=columns, rows=rows) as there:
        assert there.finish() == 0
    assert len(there.frames) > 5
    assert there.screen.cut == 0
    assert (there.screen.cursor, there.screen.wraps, there.screen.column) == (True, True, 0)
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", there.seen[there.seen.rindex("\x1b[J") :])
    lines = text.replace("\r", "").splitlines()
    assert [line for line in lines if not STAYS.fullmatch(line)] == []
    assert lines[-1].startswith("PROVED")
    return there


@pytest.mark.parametrize(("name", "option"), [("dumb", ()), ("xterm", ("--plain",))])
def test_without_a_picture_nothing_moves(place: dict[str, str], name: str, option: tuple[str, ...]) -> None:
    with terminal({**place, "TERM": name}, *option, columns=130) as there:
        assert there.finish() == 0
    codes = set(re.findall(r"\x1b\[?[^A-Za-z]*[A-Za-z]", there.seen))
    assert codes == ({"\x1b[1m", "\x1b[32m", "\x1b[0m"} if name == "xterm" else set())
    assert "held by worker-" in there.seen


def test_when_the_size_changes_the_screen_is_begun_anew(place: dict[str, str]) -> None:
    with terminal(place, columns=130, rows=40) as there:
        there.until(lambda frame: "holds, token" in frame)
        there.resize(40, 20)
        there.until(lambda frame: "killed" in frame)
        before = len(there.frames)
        there.resize(125, 30)
        there.until(lambda frame: "refused" in frame)
        assert there.finish() == 0
    assert there.screen.text().splitlines()[-1].startswith("PROVED")
    assert max(frame.count("handovers") for frame in there.frames[before:]) == 1, "no second picture"
    left_on_the_screen(there)


def test_ctrl_c_leaves_the_story_so_far(place: dict[str, str], tmp_path: Path) -> None:
    """Ctrl-C discards what the terminal has not read, beyond a buffer: whole frames, and mostly a part of one."""
    with terminal(place, columns=130) as there:
        there.until(lambda frame: "killed while" in frame)
        there.leave_unread()
        there.type(b"\x03")
        there.process.wait(PATIENCE)
        assert there.finish() == 128 + signal.SIGINT
    lines = left_on_the_screen(there)
    assert lines[0].startswith("3 workers")
    assert "killed while" in " ".join(lines)
    assert lines[-1] == "failed: interrupted"
    assert left_behind(tmp_path) == []


def test_after_a_stop_it_goes_on_below(place: dict[str, str]) -> None:
    """The demo must not draw over what the shell wrote meanwhile."""
    with terminal(place, "--turns=10", columns=130, rows=60) as there:
        there.until(lambda frame: "holds, token" in frame)
        os.kill(there.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, there.process.pid, os.WSTOPPED)
        os.kill(there.process.pid, signal.SIGCONT)
        there.until(lambda frame: frame.count("handovers") == 2)
        assert there.finish() == 0
    assert there.screen.text().splitlines()[-1].startswith("PROVED")


def test_a_terminal_that_is_closed_ends_it(place: dict[str, str], tmp_path: Path) -> None:
    with terminal(place) as there:
        there.until(lambda frame: "paused while" in frame)
        there.hang_up()
        assert there.process.wait(PATIENCE) in (128 + signal.SIGHUP, 128 + signal.SIGPIPE)
        assert left_behind(tmp_path) == []
