"""`dibs top`: on a terminal that pyte interprets, and as plain text."""

from __future__ import annotations

import io
import json
import signal
import termios
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyte
import pytest

import dibs
from cli.commands import COMMAND, Cli, harmful
from cli.terminals import CTRL_C, CTRL_Z, ESCAPE, Shell, Terminal
from dibs._shared import not_shown
from dibs.cli import top_screen
from dibs.cli.top_screen import Screen
from dibs.cli.top_view import Sample, View
from dibs.info import LockInfo, Participant
from dibs.monitor.scan import Scan
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from process.children import until

ROWS, COLUMNS = 20, 120
ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"


class Top(Terminal):
    """`dibs top`, and what its screen shows."""

    def __init__(self, cli: Cli, *words: str, **more: str | None) -> None:
        super().__init__([*COMMAND, "top", *words], cli.environment(**more), cli.directory)
        cli._keep(self)
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._fed = 0
        self.resize(ROWS, COLUMNS)

    def resize(self, lines: int, columns: int) -> None:
        self._screen.resize(lines, columns)
        super().resize(lines, columns)

    def lines(self) -> list[str]:
        _ = self.text  # which reads on
        self._stream.feed(self._seen[self._fed :])
        self._fed = len(self._seen)
        return [line.rstrip() for line in self._screen.display]

    def shows(self, *words: str, without: str = "\0") -> list[str]:
        """Wait until one screen has all of these words."""

        def seen() -> bool:
            text = "\n".join(self.lines())
            return all(word in text for word in words) and without not in text

        until(lambda: seen() or self.process.poll() is not None, what=f"{words} on the screen")
        assert seen(), self.lines()
        return self.lines()

    def end(self) -> int:
        status = super().end()
        assert self.text.count(ENTERED) == self.text.count(LEFT) > 0
        assert self.text.rstrip("\n^C").endswith(LEFT)
        assert termios.tcgetattr(self._master) == self.modes
        return status


def names(lines: list[str]) -> list[str]:
    """The names of the rows, in their order."""
    header = next(at for at, line in enumerate(lines) if line.startswith("NAME"))
    return [line.split()[0] for line in lines[header + 1 : -1] if line]


@pytest.mark.gate  # a standstill longer than the waiting lease gives the waiter another token
def test_the_view_and_its_keys(cli: Cli) -> None:
    ana, bob = cli.holder(owner="[red]ana\x1b[2J"), cli.holder(owner="bob")
    token = ana.takes("b\u202e日本")
    bob.takes("a")
    bob.asks("b\u202e日本", key="queued")
    (waiter,) = cli.in_queue("b\u202e日本", 1).waiters
    top = Top(cli)
    lines = top.shows(cli.url, "as of", "held 2   waiting 1", "2 of 2 names shown", "by pressure", "[red]ana\\x1b[2J@")
    assert names(lines) == ["b\\u202e日本", "a"]
    assert str(token) in "\n".join(lines)

    top.type("sss")
    assert names(top.shows("by name")) == ["a", "b\\u202e日本"]
    top.type("/x")
    top.shows("No name matches the filter.")
    top.type("\x7fB")
    assert names(top.shows("filter: B_", "1 of 2 names shown")) == ["b\\u202e日本"]
    top.type("\r")
    top.shows('only names with "B"')
    top.type("\r")
    lines = top.shows("1 holding, 1 waiting", f"holds  token {token}", f"1st    token {waiter.token}", "thread queued")
    assert [line.split()[0] for line in lines if " token " in line] == ["holds", "1st"]

    top.type(ESCAPE)
    top.shows("1 of 2 names shown", "NAME")
    top.type(ESCAPE)
    top.shows("2 of 2 names shown", without="only names")
    top.type("?")
    top.shows("this help")
    top.type("x")
    top.shows("NAME", without="this help")
    ana.gives()
    assert bob.took("queued") == waiter.token
    top.shows("waiting 0", str(waiter.token), without=str(token))
    top.type("q")
    assert top.end() == 0


@pytest.mark.gate
def test_a_store_that_does_not_answer(cli: Cli) -> None:
    require("redis")
    with Server(Redis()) as server:
        cli.url = server.url()
        token = cli.holder(lease=300).takes("a")
        top = Top(cli)
        top.shows("held 1", str(token))
        server.stop()
        try:
            top.shows("(the store does not answer)", "Next: ", "held 1", str(token))
            top.resize(ROWS, 60)
            top.shows("Next: ", "held 1")
            top.resize(ROWS, COLUMNS)
            top.type("\r")
            top.shows(f"holds  token {token}")
        finally:
            server.resume()
        top.shows(f"holds  token {token}", without="does not answer")
        top.type("q")
        assert top.end() == 0
        cli.close()
        cli._started.clear()


@pytest.mark.gate
def test_a_store_that_never_answered(cli: Cli) -> None:
    cli.url = "redis://127.0.0.1:1"
    top = Top(cli)
    top.resize(ROWS, 60)
    top.shows(cli.url, "Next: ")
    top.type("q")
    assert top.end() == 0


def test_sizes(cli: Cli) -> None:
    token = cli.holder(owner="ana").takes("a")
    top = Top(cli)
    top.shows("KIND", str(token))
    top.resize(ROWS, 60)
    top.shows("NAME", "ana@", without=str(token))
    top.resize(4, 12)
    top.shows("the window i")
    top.resize(ROWS, COLUMNS)
    top.shows("KIND", str(token))
    top.type("q")
    assert top.end() == 0


@pytest.mark.gate
@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda top: top.type(CTRL_C), 130),
        (lambda top: top.process.send_signal(signal.SIGTERM), 143),
        (lambda top: top.process.send_signal(signal.SIGHUP), 129),
    ],
    ids=["Ctrl-C", "TERM", "HUP"],
)
def test_the_terminal_is_restored(cli: Cli, end: Callable[[Top], None], status: int) -> None:
    top = Top(cli)
    top.shows("0 of 0 names shown")
    end(top)
    assert top.end() == status


@pytest.mark.gate
def test_it_is_stopped_and_continued(shell: Shell) -> None:
    shell.enter("stty -g > before; dibs top")
    shell.see("names shown")
    shell.type(CTRL_Z)
    shell.see(r"\x1b\[\?1049l")
    assert shell.prompt() == 128 + signal.SIGTSTP
    assert shell.status("stty -g | cmp - before") == 0
    shell.enter("fg")
    shell.see(r"\x1b\[\?1049h")
    shell.see("names shown")
    shell.type("q")
    assert shell.prompt() == 0
    assert shell.status("stty -g | cmp - before") == 0


def sample(count: int) -> Sample:
    holder = Participant(owner="ana", token=7, remaining=5.0)
    locks = [LockInfo(name=f"n{number:05}", holders=(holder,)) for number in range(count)]
    return Sample(Scan(datetime.now(UTC), 0.1, locks, complete=False))


def test_only_visible_rows_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    view, drawn = View("redis://cache", ["the lease left of a hold"]), []
    view.show(sample(10_000))
    screen = Screen(view)
    cells = screen._cells
    monkeypatch.setattr(screen, "_cells", lambda *words: drawn.append(1) or cells(*words))
    for key in ("down", "end", "pgup"):
        screen._press(key)
        lines = [str(line) for line in screen._lines(100, 24)]
        assert len(lines) == 24
        assert any(line.startswith(view.selected.name) for line in lines if view.selected)
    assert len(drawn) < 3 * 24
    assert "10000 of 10000 names shown (the store has more)" in lines[1]
    assert lines[2] == "this store does not show the lease left of a hold"


def test_what_each_takes_of_a_lock_that_several_can_hold() -> None:
    view = View("redis://cache", [])
    screen = Screen(view)
    people = (Participant(owner="ana", token=1, weight=2), Participant(owner="bo", token=2, weight=9))
    for kind, shares in (("semaphore", ["2 of 9 permits", "9 of 9 permits"]), ("rw", ["read", "write"])):
        lock = LockInfo(name="a", kind=kind, capacity=9, holders=people[:1], waiters=people[1:])
        view.show(Sample(Scan(datetime.now(UTC), 0.1, [lock])))
        screen._press("enter")
        lines = [str(line) for line in screen._lines(100, 24) if " token " in str(line)]
        assert [share in line for share, line in zip(shares, lines, strict=True)] == [True, True], lines


def test_a_queue_that_became_shorter_than_what_was_scrolled_is_still_shown() -> None:
    view, waiters = View("redis://cache", []), [Participant(owner=f"w{place}", token=place) for place in range(1, 91)]
    screen = Screen(view)

    def tokens(count: int) -> list[str]:
        lock = LockInfo(name="a", waiters=tuple(waiters[:count]))
        view.show(Sample(Scan(datetime.now(UTC), 0.1, [lock])))
        return [str(line).split()[2] for line in screen._lines(100, 24) if " token " in str(line)]

    tokens(90)
    for key in ("enter", "end"):
        screen._press(key)
        seen = tokens(90)
    assert seen[-1] == "90"
    assert tokens(3) == ["1", "2", "3"]


def test_a_terminal_without_unicode_is_not_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    view = View("redis://cache", [])
    lock = LockInfo(name="日本語" * 30, holders=(Participant(owner="ü" * 80, token=7, remaining=5.0),))
    view.show(Sample(Scan(datetime.now(UTC), 0.1, [lock])))
    screen = Screen(view)
    for key in ("up", "enter", "esc"):
        assert screen._press(key)
        assert all(str(line).isascii() for line in screen._lines(100, 24))
    assert max(len(str(line).rstrip()) for line in screen._lines(100, 24)) <= 100


def test_a_key_may_arrive_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[bytes] = []
    monkeypatch.setattr(top_screen, "os", SimpleNamespace(read=lambda *_: pieces.pop(0)))
    monkeypatch.setattr(top_screen, "select", SimpleNamespace(select=lambda *_: (pieces, [], [])))
    for parts, keys in (
        ([b"\x1b", b"[", b"B"], ["down"]),
        ([b"\x1b[1", b";5q", b"j"], ["\x1b[1;5q"]),
        ([b"\x1b[<0;3;3M\x1bOPs"], ["\x1b[<0;3;3M", "\x1bOP", "s"]),
        ([b"\xc3", b"\xa9"], []),
        ([b"\x1b"], ["esc"]),
        ([b"\x1b", b""], ["esc"]),
        ([b""], [""]),
    ):
        screen, pieces[:] = Screen(View("redis://cache", [])), parts
        assert list(screen._keys()) == keys
        if pieces == [b"\xa9"]:
            assert list(screen._keys()) == ["é"], "of two reads"


def test_the_end_of_the_input_is_the_end() -> None:
    screen = Screen(View("redis://cache", []))
    for keys in ("", "/", "?"):
        assert all(map(screen._press, keys))
        assert not screen._press("")


def test_without_a_terminal_it_prints_one_table(cli: Cli) -> None:
    ana, bob = cli.holder(owner="ana"), cli.holder(owner="bob")
    ana.takes("busy\u202e")
    token = ana.takes("calm", key="other")
    bob.asks("busy\u202e")
    cli.in_queue("busy\u202e", 1)
    for words in ([], ["--once"], ["--once", "--interval", "1"]):
        done = cli.run("top", *words)
        assert (done.returncode, done.stderr, harmful(done.stdout)) == (0, "", [])
        first, second, header, busy, calm = done.stdout.splitlines()
        assert cli.url in first
        assert "held 2   waiting 1" in second
        assert header.startswith("NAME")
        assert busy.startswith("busy\\u202e")
        assert calm.endswith(str(token))
    assert [line.split()[0] for line in cli.run("top", "c").stdout.splitlines()[3:]] == ["calm"]
    (seen,) = cli.json("top")
    assert (seen["held"], seen["waiting"], seen["complete"]) == (2, 1, True)
    assert [info["name"] for info in seen["locks"]] == ["busy\u202e", "calm"]


@pytest.mark.gate
def test_an_interval_prints_again_and_counts_hand_overs(cli: Cli) -> None:
    ana, bob = cli.holder(owner="ana"), cli.holder(owner="bob")
    first = ana.takes("a")
    bob.asks("a")
    cli.in_queue("a", 1)
    running = cli.start("top", "--interval", "1s", "--json")
    assert json.loads(running.hear())["locks"][0]["holders"][0]["token"] == first
    ana.gives()
    token = bob.took()
    seen: dict[str, Any] = {"locks": []}
    while not (seen["locks"] and seen["locks"][0]["holders"][0]["token"] == token):
        seen = json.loads(running.hear())
    assert seen["handovers_per_second"] > 0
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130


def test_usage(cli: Cli) -> None:
    for words in (["--interval", "0.5"], ["--interval", "soon"], ["a", "b"]):
        done = cli.run("top", *words)
        assert (done.returncode, done.stdout) == (64, "")
        assert done.stderr.startswith("dibs top: ")


def test_the_store_tells_what_it_cannot_show() -> None:
    with dibs.connect("postgresql://localhost/app?mode=session") as client:
        assert not_shown(client) == [
            "the lease left of a hold",
            "the token of a waiter",
            "info and threads",
            "locks inside a transaction (within)",
        ]
    with dibs.connect("quorum+memory://a,b,c") as client:
        assert not_shown(client) == ["waiters", "who broke a lock"]
