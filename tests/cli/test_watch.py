"""`dibs watch`: the line as it is, then one line of text for each change, as soon as it is seen."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli.commands import ASCII, COMMAND, Cli, Running, harmful
from cli.test_ls import HOSTILE
from dibs.cli.watch import changes, differences
from dibs.info import LockInfo, Participant
from process.children import PATIENCE
from store.sqlite.places import standstill

TIME = re.compile(r"\d\d:\d\d:\d\d\.\d{3}  (.+)")


def told(watching: Running) -> str:
    """The next line, without its time."""
    line = watching.hear()
    found = TIME.fullmatch(line)
    assert found is not None, line
    return found[1]


def test_what_happens_is_told_as_it_happens(cli: Cli) -> None:
    watching = cli.start("watch", "a")
    assert told(watching) == "free; 0 waiting"
    ana = cli.holder(owner="ana", info={"command": "deploy.sh"})
    token = ana.takes("a")
    here = re.escape(f"pid {ana.pid} (deploy.sh)")
    assert re.fullmatch(rf"ana@\S+ {here} \(same host\) took it, token {token}; 0 waiting", told(watching))
    bob = cli.holder(owner="bob")
    bob.asks("a")
    assert re.fullmatch(
        rf"bob@\S+ pid {bob.pid} \(same host\) joined the queue; held by ana@.+; 1 waiting", told(watching)
    )
    ana.gives()
    second = bob.took()
    assert re.fullmatch(
        rf"ana@\S+ {here} \(same host\) no longer holds it, after .+ s, token {token}; held by .+", told(watching)
    )
    assert re.fullmatch(rf"bob@.+ took it, token {second}; 0 waiting", told(watching))
    bob.gives()
    assert re.fullmatch(r"bob@.+ no longer holds it, after .+, token \d+; free; 0 waiting", told(watching))
    assert watching.process.poll() is None


def test_json(cli: Cli) -> None:
    ana, bob = cli.worker(), cli.worker()
    token = ana.take("a")
    watching = cli.start("watch", "a", "--json")
    first = json.loads(watching.hear())
    assert list(first) == ["at", "event", "name", "kind", "capacity", "holders", "waiters"]
    assert (first["event"], first["name"], first["holders"][0]["token"]) == ("state", "a", token)
    assert abs(datetime.fromisoformat(first["at"]) - datetime.now(UTC)) < timedelta(seconds=120)
    bob.tell("take", "a", PATIENCE)
    joined = json.loads(watching.hear())
    assert (joined["event"], joined["participant"]["pid"], len(joined["waiters"])) == ("joined", bob.pid, 1)
    bob.kill()
    left = json.loads(watching.hear())
    assert (left["event"], left["participant"]["token"]) == ("left", joined["participant"]["token"])
    ana.kill()
    ended = json.loads(watching.hear())
    assert (ended["event"], ended["participant"]["token"], ended["holders"]) == ("ended", token, [])


def test_a_writer_that_goes_on_as_a_reader(cli: Cli) -> None:
    ana = cli.holder()
    ana.takes("a", "write")
    watching = cli.start("watch", "a", "--json")
    watching.hear()
    ana.hold().downgrade()
    said = json.loads(watching.hear())
    assert (said["event"], said["holders"][0]["weight"]) == ("state", 1)


def line(holders: str, waiters: str = "", weight: int = 1) -> LockInfo:
    """A letter is a participant."""

    def some(letters: str) -> tuple[Participant, ...]:
        return tuple(Participant(owner=one, token=ord(one), weight=weight) for one in letters)

    return LockInfo(name="x", holders=some(holders), waiters=some(waiters))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (line(""), line(""), ""),
        (line("a", "bc"), line("a", "bc"), ""),
        (line(""), line("a"), "took a"),
        (line("a"), line(""), "ended a"),
        (line("a"), line("a", "bc"), "joined b, joined c"),
        (line("a", "bc"), line("a", "c"), "left b"),
        (line("a", "bc"), line("b", "c"), "ended a, took b"),
        (line("a", "b"), line("c", "d"), "ended a, left b, took c, joined d"),
        (line("ab", "c"), line("bc"), "ended a, took c"),
        (line("a", weight=9), line("a"), "state"),
        (line("a", weight=9), line("a", "b"), "joined b"),
    ],
)
def test_what_is_different(before: LockInfo, after: LockInfo, said: str) -> None:
    found = changes(before, after)
    assert ", ".join(event if one is None else f"{event} {one.owner}" for event, one in found) == said


def test_first_comes_the_state_and_a_name_that_is_not_listed_is_free() -> None:
    a, b = line("a", "b"), LockInfo(name="y", holders=(Participant(token=7),))
    assert [(info.name, event) for info, (event, _) in differences(None, {"x": a, "y": b})] == [
        ("x", "state"),
        ("y", "state"),
    ]
    found = differences({"x": a}, {"y": b})
    assert [(info.name, event, len(info.holders)) for info, (event, _) in found] == [
        ("x", "ended", 0),
        ("x", "left", 0),
        ("y", "took", 1),
    ]


def test_all_locks_with_a_prefix(cli: Cli) -> None:
    """The prefix means itself; what was there at the beginning is told first."""
    ana, bob = cli.holder(owner="ana"), cli.holder(owner="bob")
    for name in ("job:*1", "job:2", "other"):
        ana.takes(name, key=name)
    watching = cli.start("watch", "--prefix", "job:")
    assert watching.hear_error() == f'dibs watch: watching all locks on {cli.url} whose names begin with "job:"'
    assert sorted(told(watching).partition(": ")[0] for _ in range(2)) == ['"job:*1"', '"job:2"']
    literal = cli.start("watch", "--prefix", "job:*", "--json")
    assert json.loads(literal.hear())["name"] == "job:*1"
    ana.gives("other")
    bob.asks("job:2")
    cli.in_queue("job:2", 1)
    assert re.fullmatch(r'"job:2": bob@.+ joined the queue; held by ana@.+; 1 waiting', told(watching))
    ana.gives("job:*1")
    assert re.fullmatch(r'"job:\*1": ana@.+ no longer holds it, after .+; free; 0 waiting', told(watching))
    ended = json.loads(literal.hear())
    assert (ended["event"], ended["name"], ended["holders"]) == ("ended", "job:*1", [])
    token = ana.takes("job:3", key="job:3")
    assert re.fullmatch(rf'"job:3": ana@.+ took it, token {token}; 0 waiting', told(watching))


@pytest.mark.parametrize("words", [[], ["a", "--prefix", "b"]])
def test_one_name_or_a_prefix(cli: Cli, words: list[str]) -> None:
    done = cli.run("watch", *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert "give the name of one lock, or --prefix TEXT" in done.stderr


def test_a_signal_ends_it_in_a_pipe(cli: Cli) -> None:
    watching = cli.start("watch", "a")
    told(watching)
    watching.process.send_signal(signal.SIGINT)
    assert watching.end() == 130
    assert watching.rest() == ([], [])


def test_who_reads_no_further_ends_it(cli: Cli) -> None:
    ana = cli.holder()
    pipes = {"env": cli.environment(), "cwd": cli.directory, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, "watch", "a", "--json"], **pipes) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "state"
        process.stdout.close()
        ana.takes("a")
        assert process.wait(PATIENCE) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_store_that_is_silent_for_a_while_is_said_once(cli: Cli) -> None:
    cli.client().inspect("a")
    with standstill(cli.path):
        watching = cli.start("watch", "a")
        said = watching.hear_error()
        assert said.startswith(f'dibs watch: "a" on {cli.url}: ')
        assert said.endswith(" (retrying)")
    assert told(watching) == "free; 0 waiting"
    assert watching.hear_error() == "dibs watch: the store responds again"


@pytest.mark.parametrize("more", [{}, ASCII], ids=["UTF-8", "ASCII"])
def test_hostile_text_steers_no_terminal(cli: Cli, more: dict[str, Any]) -> None:
    cli.holder(owner=HOSTILE, info={"command": HOSTILE + "x" * 15_000}).takes("a\u202eb")
    watching = cli.start("watch", "a\u202eb", **more)
    line = watching.hear()
    assert harmful(line) == []
    assert r"\x1b" in line
    assert len(line) < 400
