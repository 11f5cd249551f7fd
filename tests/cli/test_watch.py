"""`dibs watch`: the queue as it is, then one line of text for each change. `dibs wait`: until nobody holds a lock."""

from __future__ import annotations

import json
import re
import signal
from datetime import UTC, datetime, timedelta

import pytest

import dibs
from cli.commands import Cli, Running, harmful
from cli.test_ls import HOSTILE
from dibs.cli.polling import poll
from dibs.cli.watch import changes, differences
from dibs.info import LockInfo, Participant
from process.children import until
from store.sqlite.places import standstill

TIME = re.compile(r"\d\d:\d\d:\d\d\.\d{3}  (.+)")


def told(watching: Running) -> str:
    """The next line, without its time."""
    line = watching.hear()
    found = TIME.fullmatch(line)
    assert found is not None, line
    return found[1]


@pytest.mark.gate
def test_changes_are_told_as_they_happen(cli: Cli) -> None:
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


@pytest.mark.gate
def test_json(cli: Cli) -> None:
    ana, bob = cli.holder(), cli.holder()
    token = ana.takes("a")
    watching = cli.start("watch", "a", "--json")
    first = json.loads(watching.hear())
    assert list(first) == ["at", "event", "name", "kind", "capacity", "holders", "waiters"]
    assert (first["event"], first["name"], first["holders"][0]["token"]) == ("state", "a", token)
    assert abs(datetime.fromisoformat(first["at"]) - datetime.now(UTC)) < timedelta(seconds=120)
    bob.asks("a")
    joined = json.loads(watching.hear())
    assert (joined["event"], joined["participant"]["pid"], len(joined["waiters"])) == ("joined", bob.pid, 1)
    bob.discard()
    left = json.loads(watching.hear())
    assert (left["event"], left["participant"]["token"]) == ("left", joined["participant"]["token"])
    ana.gives()
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


def test_changes_between_two_looks() -> None:
    for before, after, said in (
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
    ):
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


@pytest.mark.gate
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


def test_one_name_or_a_prefix(cli: Cli) -> None:
    for words in ([], ["a", "--prefix", "b"]):
        done = cli.run("watch", *words)
        assert (done.returncode, done.stdout) == (64, "")
        assert "give the name of one lock, or --prefix TEXT" in done.stderr


def test_a_signal_ends_it_in_a_pipe(cli: Cli) -> None:
    watching = cli.start("watch", "a")
    told(watching)
    watching.process.send_signal(signal.SIGINT)
    assert watching.end() == 130
    assert watching.rest() == ([], [])


@pytest.mark.gate
def test_a_store_that_is_silent_for_a_while_is_said_once(cli: Cli) -> None:
    cli.client().inspect("a")
    with standstill(cli.path):
        watching = cli.start("watch", "a")
        said = watching.hear_error()
        assert said.startswith(f'dibs watch: "a" on {cli.url}: ')
        assert said.endswith(" (retrying)")
    assert told(watching) == "free; 0 waiting"
    assert watching.hear_error() == "dibs watch: the store responds again"


# `dibs wait`.


def test_a_free_lock(cli: Cli) -> None:
    done = cli.run("wait", "a")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert cli.json("wait", "a", "--timeout", "0")[0]["holders"] == []


@pytest.mark.gate
def test_it_waits_until_the_lock_is_given_back_and_takes_nothing(cli: Cli) -> None:
    ana = cli.holder()
    ana.takes("a")
    running = cli.start("wait", "a", "--json", "--timeout", "1h")
    bob = cli.holder()
    bob.asks("a")
    info = cli.in_queue("a", 1)
    assert (len(info.holders), running.process.poll()) == (1, None)
    ana.gives()
    bob.took()
    assert running.process.poll() is None, "somebody else has it now"
    bob.gives()
    said = json.loads(running.hear())
    assert (said["name"], said["holders"], said["waiters"]) == ("a", [], [])
    assert running.end() == 0
    assert running.rest() == ([], [])


def test_the_time_is_over(cli: Cli) -> None:
    ana = cli.holder(owner=HOSTILE, info={"command": "deploy.sh"})
    token = ana.takes("a", "semaphore", 5)
    for timeout, after in (("0", ""), ("300ms", " after 0.3 s")):
        done = cli.run("wait", "a", "--timeout", timeout, "--json")
        assert done.returncode == 75
        assert json.loads(done.stdout)["holders"][0]["token"] == token
        assert done.stderr.startswith(f'dibs wait: "a" on {cli.url}: not free{after}: held by ')
        assert f"pid {ana.pid} (deploy.sh) for " in done.stderr
        assert done.stderr.endswith(". Next: dibs show a\n")
        assert harmful(done.stderr) == []
    for key in "yz":
        ana.takes("a", "semaphore", 5, key=key)
    assert " and 2 more. Next" in cli.run("wait", "a", "--timeout", "0").stderr
    for timeout in ("-1", "soon", "inf", "", "1w"):
        done = cli.run("wait", "a", f"--timeout={timeout}")
        assert (done.returncode, done.stdout) == (64, "")
        assert "not a duration" in done.stderr


@pytest.mark.gate
def test_ctrl_c(cli: Cli) -> None:
    cli.holder().takes("a")
    terminal = cli.terminal("wait", "a")
    cli.in_queue("a", 0)
    directory = cli.path.with_name(cli.path.name + ".d")
    until(lambda: len(list(directory.glob("*.sock"))) == 3, what="the third client of the store")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text


@pytest.mark.gate
def test_a_store_that_does_not_answer(cli: Cli) -> None:
    cli.holder().takes("a")
    with standstill(cli.path):
        done = cli.run("wait", "a", "--timeout", "0")
        assert done.returncode == 69
        assert done.stderr.startswith(f'dibs wait: "a" on {cli.url}: ')
        assert "retrying" not in done.stderr, "its time was over"


@pytest.mark.alone
def test_patience_with_a_silent_store_ends(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dibs.cli.polling.PATIENCE", 0.5)
    cli.holder().takes("a")
    with standstill(cli.path), dibs.connect(cli.url, retry=0.1) as client, pytest.raises(dibs.StoreUnavailable):
        next(poll(lambda: client.inspect("a"), "wait"))
    assert capsys.readouterr().err.count(" (retrying)\n") == 1, "it is said once"
