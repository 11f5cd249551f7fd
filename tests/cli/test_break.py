"""`dibs break`: takes a lock from the holder with that token and from no other, asks first, and says who did it."""

from __future__ import annotations

import io
import json
import os
import shlex
import sqlite3
import syslog
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

import dibs
from cli.commands import COMMAND, Cli, Done, Terminal, harmful
from cli.test_ls import HOSTILE
from dibs._shared import login
from dibs.cli import break_
from dibs.cli.options import next_command
from dibs.info import LONGEST_REASON, Break, read_break
from dibs.monitor import break_log
from process.children import PATIENCE

QUESTION = "break it? [y/N] "
ME = f"{login()}@{os.uname().nodename}"
RECORD = Break(datetime(2026, 11, 15, 12, tzinfo=UTC), "ana", "web-3", 7, 41, "bob@ci-7 pid 9", "it hangs")


def broken(cli: Cli, name: str, token: int, *more: str) -> Done:
    return cli.run("break", name, "--token", str(token), "--yes", *more)


def asked(cli: Cli, name: str, token: int, *more: str) -> Terminal:
    """A terminal with the question on it."""
    terminal = cli.terminal("break", name, "--token", str(token), *more)
    terminal.hear(QUESTION)
    return terminal


def tokens(cli: Cli, name: str = "a") -> list[int]:
    return [holder.token for holder in cli.client().inspect(name).holders]


def test_it_is_broken_and_the_next_one_gets_it(cli: Cli) -> None:
    ana, bob = cli.holder(owner="ana", lease=10, info={"command": "deploy.sh"}), cli.holder(owner="bob")
    token = ana.takes("a")
    bob.asks("a")
    cli.in_queue("a", 1)
    done = broken(cli, "a", token, "--reason", "it hangs")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f'dibs break: "a" on {cli.url}: broken by {ME} pid ')
    assert f": token {token} of ana@{os.uname().nodename} pid {ana.pid} (deploy.sh), held for " in done.stderr
    assert done.stderr.endswith("; reason: it hangs\n")
    assert done.stderr.count("\n") == 1
    assert bob.took() > token
    assert ana.hold().lost.wait(PATIENCE)


def test_it_is_on_record(cli: Cli) -> None:
    ana = cli.holder(owner="ana")
    token = ana.takes("a")
    assert broken(cli, "a", token, "--reason", "it hangs").returncode == 0
    found = break_log.last(cli.client(), "a")
    assert (found.by, found.host, found.token, found.reason) == (login(), os.uname().nodename, token, "it hangs")
    assert found.holder.startswith(f"ana@{os.uname().nodename} pid {ana.pid}, held for ")
    assert abs((datetime.now(UTC) - found.at).total_seconds()) < 60
    shown = cli.run("show", "a").stdout.splitlines()
    assert shown[0].endswith(": free")
    assert f"ago by {found.breaker}: token {token} of ana@" in shown[-1]
    assert shown[-1].endswith("; reason: it hangs")
    (info,) = cli.json("show", "a")
    assert info["last_break"] == {**found._asdict(), "at": found.at.isoformat(timespec="milliseconds")[:-6] + "Z"}
    second = cli.holder(owner="bob").takes("a")
    done = broken(cli, "a", second, "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["broken"]["token"], said["broken"]["by"]) == (0, second, login())
    assert (said["name"], said["holders"][0]["owner"]) == ("a", "bob")
    again = break_log.last(cli.client(), "a")
    assert (again.token > token, again.reason) == (True, "")


def test_another_token(cli: Cli) -> None:
    ana = cli.holder(owner="ana")
    token = ana.takes("a")
    for wrong in (token - 1, token + 1, 2**70):
        done = broken(cli, "a", wrong)
        assert done.returncode == 1
        said = f'"a" on {cli.url}: nobody holds it with token {wrong}. Nothing was changed. Held by:\n  ana@'
        assert said in done.stderr
        assert done.stderr.endswith(f", token {token}\n    dibs break a --token {token}\n")
        refused = json.loads(broken(cli, "a", wrong, "--json").stdout)
        assert (refused["broken"], refused["holders"][0]["token"]) == (None, token)
    assert tokens(cli) == [token]
    assert break_log.last(cli.client(), "a") is None
    free = broken(cli, "b", 41)
    assert free.returncode == 1
    terminal = cli.terminal("break", "a", "--token", str(token - 1))
    assert (terminal.end(), QUESTION in terminal.text) == (1, False)
    assert "nobody holds it with token 41. Nothing was changed. It is free.\n" in free.stderr


@pytest.mark.gate  # a standstill longer than the waiting lease gives the waiter another token
def test_a_waiter_is_no_holder(cli: Cli) -> None:
    ana, bob = cli.holder(), cli.holder()
    token = ana.takes("a")
    bob.asks("a")
    (waiter,) = cli.in_queue("a", 1).waiters
    done = broken(cli, "a", waiter.token)
    assert done.returncode == 1
    assert "that one waits; end its process to remove it from the queue" in done.stderr
    assert (tokens(cli), len(cli.in_queue("a", 1).waiters)) == ([token], 1)


def test_one_holder_of_several(cli: Cli) -> None:
    ana = cli.holder()
    held = [ana.takes("a", "semaphore", 9, key=key) for key in "abcdefg"]
    done = broken(cli, "a", 1)
    assert done.stderr.count("dibs break a --token ") == 5
    assert "  and 2 more: dibs show a\n" in done.stderr
    assert broken(cli, "a", held[2]).returncode == 0
    assert tokens(cli) == [*held[:2], *held[3:]]


def test_the_question_shows_whom_it_concerns(cli: Cli) -> None:
    ana, bob = cli.holder(info={"command": "deploy.sh"}), cli.holder(owner="bob")
    token = ana.takes("a")
    bob.asks("a")
    cli.in_queue("a", 1)
    terminal = asked(cli, "a", token)
    assert f'"a" on {cli.url}\n' in terminal.text
    assert f"held by {ME} pid {ana.pid} (deploy.sh) for " in terminal.text
    assert "(same login on this host)" in terminal.text
    assert f"token {token}, " in terminal.text
    assert f"1 waiting: bob@{os.uname().nodename} pid {bob.pid} for " in terminal.text
    assert "only the fencing token protects" in terminal.text
    assert tokens(cli) == [token], "nothing happens before the answer"
    terminal.type("y\n")
    assert terminal.end() == 0
    assert "broken by" in terminal.text
    bob.took()


@pytest.mark.parametrize(
    "answer", ["\n", *(pytest.param(keys, marks=pytest.mark.gate) for keys in ("yess\n", "\x04", "\x03"))]
)
def test_anything_but_yes_is_no(cli: Cli, answer: str) -> None:
    token = cli.holder().takes("a")
    terminal = asked(cli, "a", token)
    assert "nobody is waiting" in terminal.text
    terminal.type(answer)
    assert terminal.end() == (130 if answer == "\x03" else 1)
    assert ("not broken; nothing was changed" in terminal.text) == (answer != "\x03")
    assert "Traceback" not in terminal.text
    assert tokens(cli) == [token]


def test_the_lock_moves_on_while_the_question_stands(cli: Cli) -> None:
    ana, bob = cli.holder(), cli.holder(owner="bob")
    token = ana.takes("a")
    terminal = asked(cli, "a", token)
    ana.gives()
    second = bob.takes("a")
    terminal.type("YES\n")
    assert terminal.end() == 1
    assert f"nobody holds it with token {token}. Nothing was changed. Held by:\n  bob@" in terminal.text
    assert tokens(cli) == [second]
    assert break_log.last(cli.client(), "a") is None


def test_without_a_terminal_or_a_valid_token_nothing_is_broken(cli: Cli) -> None:
    token = cli.holder().takes("a")
    done = cli.run("break", "a", "--token", str(token))
    assert (done.returncode, done.stdout) == (64, "")
    assert "no terminal to ask on; add --yes" in done.stderr
    for words in (["a", "--token", "x"], ["a", "--token", "1.5"], ["--token", "1"]):
        done = cli.run("break", "--yes", *words)
        assert (done.returncode, done.stdout) == (64, "")
        assert "dibs break: " in done.stderr
    assert tokens(cli) == [token]


@pytest.mark.gate
def test_a_question_that_nobody_sees_is_not_asked(cli: Cli) -> None:
    token = cli.holder().takes("a")
    words = " ".join([*COMMAND, "break", "a", "--token", str(token), "2>", str(cli.directory / "err")])
    terminal = cli._keep(Terminal(["sh", "-c", words], cli.environment(), cli.directory))
    assert terminal.end() == 64
    assert "no terminal" in (cli.directory / "err").read_text()


def test_without_a_token_the_holders_are_listed_with_what_to_type_next(cli: Cli, tmp_path: Path) -> None:
    """The commands work as they are printed, in another shell, for this store."""
    ana = cli.holder(owner="ana", namespace="two words", info={"command": "deploy.sh"})
    first, second = (ana.takes("a b", "semaphore", 3, key=key) for key in "xy")
    file = tmp_path / "url"
    file.write_text(cli.url)
    file.chmod(0o600)
    for store in (["--url", cli.url], ["--url-file", str(file)]):
        done = cli.run("break", "a b", *store, "--namespace", "two words", DIBS_URL=None)
        assert (done.returncode, done.stdout) == (64, "")
        head, *lines = done.stderr.splitlines()
        assert head == f'dibs break: "a b" on {cli.url}: no --token was given. Nothing was changed. Held by:'
        assert f"  ana@{os.uname().nodename} pid {ana.pid} (deploy.sh) for " in lines[0]
        assert lines[2].endswith(f", token {second}")
        commands = [shlex.split(line) for line in lines[1::2]]
        more = [*store, "--namespace", "two words"]
        assert commands == [["dibs", "break", "a b", "--token", str(token), *more] for token in (first, second)]
    shown = cli.run(*commands[0][1:], "--yes", DIBS_URL=None)
    assert shown.returncode == 0
    said = cli.run("break", "a b", "--url", cli.url, "--namespace", "two words", "--json")
    assert said.returncode == 64
    assert [one["token"] for one in json.loads(said.stdout)["holders"]] == [second]
    assert json.loads(said.stdout)["broken"] is None


def test_what_to_type_next_shows_no_password_and_knows_odd_names(cli: Cli) -> None:
    made = break_.parser().parse_args(["a", "--url", "redis://ana:hunter2@cache/0"])
    assert next_command(made, "break", "--force", "--token", "7") == (
        "dibs break --token 7 --url-file FILE -- --force (put the URL with its password into FILE)"
    )
    free = cli.run("break", "a")
    assert free.stderr.endswith(": no --token was given. Nothing was changed. It is free.\n")
    assert free.returncode == 64


def test_hostile_text_steers_no_terminal(cli: Cli) -> None:
    ana = cli.holder(owner=HOSTILE, info={"command": HOSTILE})
    token = ana.takes("a\u202eb")
    terminal = asked(cli, "a\u202eb", token, "--reason", HOSTILE + "x" * 100_000)
    terminal.type("y\n")
    assert terminal.end() == 0
    assert harmful(terminal.text) == []
    assert r"a\u202eb" in terminal.text
    assert len(terminal.text) < 4000
    shown = cli.run("show", "a\u202eb").stdout
    assert harmful(shown) == []
    assert r"reason: \x1b" in shown
    record = cli.client().cell("dibs:broken:a\u202eb").get()[0]
    assert len(record) < 8000


def test_somebody_elses_value_is_left_alone(cli: Cli) -> None:
    token = cli.holder().takes("a")
    cell = cli.client().cell("dibs:broken:a")
    cell.set(b'{"record": "mine"}', 0)
    assert broken(cli, "a", token).returncode == 0
    assert cell.get() == (b'{"record": "mine"}', 1)
    assert "last broken" not in cli.run("show", "a").stdout


def test_a_name_too_long_for_a_record(cli: Cli) -> None:
    name = "é" * 256
    token = cli.holder().takes(name)
    assert broken(cli, name, token, "--reason", "it hangs").returncode == 0
    assert tokens(cli, name) == []
    assert break_log.last(cli.client(), name) is None
    assert cli.run("show", name).returncode == 0


def test_a_store_without_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    with dibs.connect("memory://no-cells") as client:
        monkeypatch.setattr(type(client._core.store), "capabilities", frozenset())
        with pytest.raises(dibs.Unsupported):
            client.cell("a")
        break_log.record(client, "a", RECORD)
        assert break_log.last(client, "a") is None


def test_what_is_written_is_read() -> None:
    with dibs.connect("memory://breaks") as client:
        assert break_log.last(client, "a") is None
        break_log.record(client, "a", RECORD)
        assert break_log.last(client, "a") == RECORD
        long = Break(RECORD.at, "é" * 9999, "é" * 9999, 1, 2, "é" * 9999, "\udcff" * 9999)
        break_log.record(client, "a", long)
        found = break_log.last(client, "a")
        assert (found.token, len(found.reason), len(found.by)) == (2, LONGEST_REASON, 80)
        assert harmful(found.told(RECORD.at)) == []


GOOD = {"record": "broken lock", **RECORD.to_json()}


GARBAGE = [
    b"", b"\xff", b"[]", b"{}", b'"x"', b"null", b"[" * 5000, b"1e999", b'{"at": 1}',
    *(json.dumps({**GOOD, key: wrong}).encode() for key, wrong in [
        ("record", "x"), ("at", "soon"), ("at", None), ("at", "0001-01-01T00:00:00+23:59"), ("pid", "x"),
        ("token", None), ("token", float("inf")), ("token", 10**400), ("pid", -(10**30)), ("reason", "x" * 9000),
    ]),
    *(json.dumps({k: v for k, v in GOOD.items() if k != key}).encode() for key in GOOD),
]  # fmt: skip


def test_garbage_is_no_record() -> None:
    assert read_break(json.dumps(GOOD).encode()) == RECORD
    assert [value for value in GARBAGE if read_break(value) is not None] == []


def test_the_systems_log(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, logged = [], []
    monkeypatch.setattr("syslog.openlog", lambda *words: opened.append(words))
    monkeypatch.setattr("syslog.syslog", lambda *words: logged.append(words))
    token = cli.holder(owner="ana").takes("a\u202eb")
    assert broken(cli, "a\u202eb", token, "--reason", "it\nhangs").returncode == 0
    assert opened == [("dibs", syslog.LOG_PID, syslog.LOG_AUTH)]
    ((level, said),) = logged
    assert level == syslog.LOG_NOTICE
    assert f'"a\\u202eb" on {cli.url}: broken by {ME} pid ' in said
    assert said.endswith(r"; reason: it\nhangs")
    assert harmful(said) == []


@pytest.mark.gate
def test_a_break_without_an_answer_is_logged_too(
    cli: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have happened. Nobody can write to the store just then."""
    token = cli.holder(owner="ana").takes("a")
    client, logged = dibs.connect(cli.url, retry=2), list[str]()
    client.inspect("a")
    monkeypatch.setattr(break_, "connect", lambda *_: client)
    monkeypatch.setattr(break_log, "log", logged.append)
    with closing(sqlite3.connect(cli.path, isolation_level=None)) as busy:
        busy.execute("BEGIN IMMEDIATE")
        assert break_.main(["a", "--token", str(token), "--yes", "--reason", "it hangs"]) == 69
    assert "it is not known whether the lock was broken; look again: dibs show a" in capsys.readouterr().err
    (said,) = logged
    assert f"perhaps broken, the store did not reply, by {ME} pid " in said
    assert said.endswith("reason: it hangs")


def test_a_holder_that_tells_no_process_is_not_named_by_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Java programs do not tell their pid, and `kill 0` would end the wrong ones."""
    java = dibs.Participant(owner="127.0.0.1", token=7)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert not break_._agreed(dibs.LockInfo(name="a", holders=(java,)), java, "zookeeper://h1")
    said = capsys.readouterr().err
    assert "held by 127.0.0.1\n" in said
    assert "It is safer to end its process: then no two holders overlap." in said
