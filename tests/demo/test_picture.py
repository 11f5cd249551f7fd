"""The picture of the demo, drawn without a terminal: every state of a lane, every size."""

from __future__ import annotations

import json
import re
from itertools import permutations, product

import pytest

from demo.test_resource import good
from dibs.cli.demo_screen import ASCII, FINE, Marks, Picture, fitted
from dibs.cli.demo_show import Event, Lines, Objects
from dibs.cli.demo_worker import Record
from dibs.info import LockInfo, Participant

NAMES = ["worker-1", "worker-2", "worker-3"]


def queue(*names: str, left: float = 1.0) -> LockInfo:
    """The first one holds with token 7, the others wait."""
    of = [Participant(owner=name, token=7 + place, remaining=left) for place, name in enumerate(names)]
    return LockInfo(name="x", holders=tuple(of[:1]), waiters=tuple(of[1:]))


def event(what: str, worker: str = "worker-1", token: int | None = None, at: float = 1.0, text: str = "") -> Event:
    return Event(at, what, worker, token, text)


def picture(*events: Event, names: list[str] | None = None, marks: Marks = ASCII) -> Picture:
    found = Picture(names or NAMES, 10, marks)
    for one in events:
        found.heed(one)
    return found


def drawn(
    of: Picture, info: LockInfo, record: Record | None = None, at: float = 1.0, columns: int = 100, rows: int = 40
) -> list[str]:
    lines = of.drawn(at, info, record or Record(), columns, rows)
    return [fitted(line, columns, colour=False) for line in lines]


def lane(of: Picture, info: LockInfo, at: float = 1.0) -> tuple[str, str]:
    """The mark and the text in the lane of worker-1."""
    (text,) = [text for text in drawn(of, info, at=at) if "worker-1" in text]
    return text[2], re.split(r" {2,}", text)[-1]


STATES: list[tuple[list[str], list[str], tuple[str, str]]] = [
    # events of worker-1, the queue, the mark and the text in its lane
    ([], [], (" ", "starting")),
    ([], ["worker-1"], (">", "holds, token 7")),
    ([], ["worker-2", "worker-3", "worker-1"], (" ", "2nd in the queue")),
    (["took"], [], (" ", "between two turns")),
    (["took", "killed"], ["worker-1"], ("x", "killed")),
    (["killed", "restarted"], ["worker-1", "worker-2"], (" ", "killed, restarted")),
    (["killed", "restarted"], ["worker-2", "worker-1"], (" ", "1st in the queue")),
    (["restarted", "took"], ["worker-1"], (">", "holds, token 7")),
    (["paused"], ["worker-1"], ("=", "paused, lease ends in 1.0 s")),
    (["paused"], ["worker-2"], ("=", "paused past its lease")),
    (["paused", "continued"], ["worker-2"], (" ", "continues past its lease")),
    (["paused", "continued", "refused", "lost"], ["worker-2", "worker-1"], ("!", "its write was refused")),
    (["refused", "took"], ["worker-1"], (">", "holds, token 7")),
    (["done"], ["worker-2"], (" ", "done")),
]


def test_the_state_of_a_worker() -> None:
    shown = [lane(picture(*map(event, events)), queue(*names)) for events, names, _ in STATES]
    assert shown == [expected for _, _, expected in STATES]
    assert lane(picture(event("paused")), queue("worker-1", left=0.0)) == ("=", "paused past its lease")


def test_a_refusal_is_forgotten_after_a_moment() -> None:
    refused = picture(event("refused", at=1.0))
    assert lane(refused, queue("worker-2", "worker-1"), at=2.4) == ("!", "its write was refused")
    assert lane(refused, queue("worker-2", "worker-1"), at=2.6) == (" ", "1st in the queue")


def test_the_bar_and_the_figures_are_the_resources() -> None:
    text = drawn(picture(), queue(), Record(turns={"worker-1": 10, "worker-2": 5, "worker-3": 1}), at=3.14)
    assert text[1] == "  16 of 30 turns   0 handovers   3.1 s"
    bars = [re.search(r"  (#*)(\.*) {2,}(\d+)/10", one) for one in text[3:6]]
    whole = text[3].count("#")
    assert whole >= 10
    assert [(len(bar[1]), len(bar[2]), bar[3]) for bar in bars if bar] == [
        (whole, 0, "10"),
        (whole // 2, whole - whole // 2, "5"),
        (whole // 10, whole - whole // 10, "1"),
    ]
    assert drawn(picture(), queue(), Record(overlaps=3))[1].endswith("   3 overlaps")


def test_grants_are_shown_in_the_order_of_their_tokens() -> None:
    """The reports of several processes come in any order."""
    takes = [event("took", f"worker-{1 + token % 3}", token) for token in (3, 1, 2, 6, 5, 4)]
    shown = picture(*takes, event("killed", "worker-2", 4), event("refused", "worker-3", 5))
    strips = [re.search(r"/10  -*([-ox!=]{6})  ", text) for text in drawn(shown, queue())]
    assert [strip[1] for strip in strips if strip] == ["--o--o", "o--x--", "-o--!-"]
    assert shown.handovers == 5


def test_handovers_are_counted_in_any_order_of_the_reports() -> None:
    takes = [(1, NAMES[0]), (2, NAMES[0]), (3, NAMES[1]), (4, NAMES[2]), (5, NAMES[2]), (6, NAMES[0])]
    for reported in permutations(takes):
        shown = picture(*(event("took", worker, token) for token, worker in reported))
        assert (shown.takes, shown.handovers) == (takes, 3)


def test_it_fits_whatever_the_size() -> None:
    workers = 32
    names = [f"worker-{number}" for number in range(1, workers + 1)]
    takes = [event("took", name, token) for token, name in enumerate(names * 3)]
    told = [event("paused", text="x" * 200, at=float(number)) for number in range(9)]
    shown = picture(*takes, *told, names=names, marks=FINE)
    for rows, columns in product([*range(12), 24, 60], range(0, 140, 3)):
        text = drawn(shown, queue(*names[1:]), columns=columns, rows=rows)
        assert len(text) <= rows
        assert max(map(len, text), default=0) <= columns
        progress = f"  0 of {10 * workers} turns   {3 * workers - 1} handovers   1.0 s"[:columns]
        assert rows < 1 or progress in text[:2]


def test_colour_takes_no_room_and_each_mark_one_column() -> None:
    pieces = [("abc", "31"), ("", "1"), ("def", "")]
    assert fitted(pieces, 5, colour=True) == "\x1b[31mabc\x1b[0mde"
    assert fitted(pieces, 3, colour=True) == "\x1b[31mabc\x1b[0m"
    assert fitted(pieces, 5, colour=False) == "abcde"
    assert "".join(ASCII).isascii()
    assert {len(mark) for marks in (FINE, ASCII) for mark in marks} == {1}


def test_lines_and_objects_say_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = good()
    outcome.seconds, outcome.longest_wait = 12.25, 0.5
    Lines(colour=False).prove(outcome)
    rows = re.findall(r"^  ([a-z][a-z -]+?) {2,}([\d.]+)", capsys.readouterr().out, re.MULTILINE)
    Objects().prove(outcome)
    said = json.loads(capsys.readouterr().out)
    assert (said.pop("event"), said.pop("proved"), said.pop("objections")) == ("proof", True, [])
    assert {re.sub("[ -]", "_", what): float(number) for what, number in rows} == said
    outcome.record.overlaps = 1
    Objects().prove(outcome)
    said = json.loads(capsys.readouterr().out)
    assert (said["proved"], said["objections"]) == (False, ["1 overlaps"])
    Lines(colour=False).prove(outcome)
    assert "NOT PROVED" in capsys.readouterr().out
