"""`dibs ls`: everything that is busy, what costs most waiting first, on any terminal and in any pipe."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.commands import ASCII, COMMAND, Cli, harmful
from dibs.cli.ls import HEADER, MOST_RICH_ROWS, aligned
from dibs.info import LockInfo, Participant
from dibs.monitor.scan import pressure
from process.children import PATIENCE

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
RICH = importlib.util.find_spec("rich") is not None
HOSTILE = "\x1b]0;pwned\x07\x1b[2J\u202egnp.exe\r\n\x9b31m"


def rows(text: str) -> list[dict[str, str]]:
    """The cells of aligned text, by the places of its titles."""
    title, *lines = text.splitlines()
    starts = [title.index(column) for column in HEADER]
    ends = [*starts[1:], None]
    return [
        {column: line[start:end].strip() for column, start, end in zip(HEADER, starts, ends, strict=True)}
        for line in lines
    ]


def test_nothing_is_held(cli: Cli) -> None:
    done = cli.run("ls")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"no lock is held or waited for on {cli.url}\n")
    done = cli.run("ls", "a", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert cli.run("ls", "a*").stderr == f'no lock whose name begins with "a*" is held or waited for on {cli.url}\n'


def test_what_costs_most_waiting_comes_first(cli: Cli) -> None:
    ana, bob = cli.holder(owner="ana", info={"command": "deploy.sh --all"}), cli.holder(owner="bob")
    tokens = {name: ana.takes(name, key=name) for name in ("a", "b", "c", "d")}
    bob.asks("d", key="first")
    cli.in_queue("d", 1)
    bob.asks("d", key="second")
    cli.in_queue("d", 2)
    bob.asks("b", key="third")
    cli.in_queue("b", 1)
    done = cli.run("ls")
    assert (done.returncode, done.stderr) == (0, "")
    found = rows(done.stdout)
    assert [(row["NAME"], row["WAITING"]) for row in found] == [("d", "2"), ("b", "1"), ("a", "0"), ("c", "0")]
    assert all(row["HOLDER"].startswith("ana@") for row in found)
    assert all(row["HOLDER"].endswith(f"pid {ana.pid} (deploy.sh --all) (same process)") for row in found)
    assert {row["NAME"]: int(row["TOKEN"]) for row in found} == tokens
    assert all(row["HELD FOR"].endswith(" s") and row["LEASE LEFT"].endswith(" s") for row in found)
    assert [bool(row["LONGEST WAIT"]) for row in found] == [True, True, False, False]
    listed = cli.json("ls")
    assert [info["name"] for info in listed] == ["d", "b", "a", "c"]
    assert [waiter["owner"] for waiter in listed[0]["waiters"]] == ["bob", "bob"]
    assert listed[0]["holders"][0]["info"] == {"command": "deploy.sh --all"}


def test_pressure_is_counted_in_waiter_seconds() -> None:
    def waited(*seconds: float) -> LockInfo:
        return LockInfo(name="a", waiters=tuple(Participant(since=NOW - timedelta(seconds=s)) for s in seconds))

    assert pressure(waited(), NOW) == 0
    assert pressure(waited(60), NOW) == 60
    assert pressure(waited(1, 2, 3.5), NOW) == 6.5
    assert pressure(waited(-5, 2), NOW) == 2, "a clock that is ahead takes nothing away"


def test_kinds_and_how_much_of_them_is_used(cli: Cli) -> None:
    ana, bob = cli.holder(), cli.holder()
    ana.takes("semaphore", "semaphore", 5, permits=2)
    bob.takes("semaphore", "semaphore", 5)
    ana.takes("reading", "read")
    bob.takes("reading", "read")
    ana.takes("writing", "write")
    ana.takes("election", "lead")
    ana.takes("striped", "stripe", 16)
    done = cli.run("ls")
    kinds = {row["NAME"]: row["KIND"] for row in rows(done.stdout)}
    (stripe,) = [name for name in kinds if name.startswith("striped#")]
    assert kinds.pop(stripe) == "mutex"
    assert kinds == {
        "semaphore": "semaphore 3/5",
        "reading": "rw read 2",
        "writing": "rw write",
        "election": "election",
        "striped": "striped of 16",
    }
    assert [row["HOLDER"].endswith(" +1") for row in rows(done.stdout) if row["NAME"] in ("semaphore", "reading")]


def test_a_prefix_means_itself(cli: Cli) -> None:
    ana = cli.holder()
    for name in ("a*", "ab", "b", "é1", "%", "--force"):
        ana.takes(name, key=name)
    for prefix, names in {"a*": ["a*"], "a": ["a*", "ab"], "é": ["é1"], "%": ["%"], "[ab]": []}.items():
        assert [info["name"] for info in cli.json("ls", prefix)] == names
    assert json.loads(cli.run("ls", "--json", "--", "--f").stdout)["name"] == "--force"


def test_columns_stay_in_line() -> None:
    lines = aligned([("NAME", "WAIT"), ("漢字", "1"), ("e\u0301", "2"), ("plain", "3")])
    assert list(lines) == ["NAME   WAIT", "漢字   1", "e\u0301      2", "plain  3"]


@pytest.mark.gate
@pytest.mark.parametrize("unbuffered", [None, "1"])
def test_who_reads_no_further_ends_it(cli: Cli, unbuffered: str | None) -> None:
    client = cli.client()
    for number in range(500):
        assert client.lock(f"some-rather-long-name-to-fill-the-pipe-{number:05}").acquire()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "pipesize": 4096}
    env = cli.environment(PYTHONUNBUFFERED=unbuffered)
    with subprocess.Popen([*COMMAND, "ls"], env=env, cwd=cli.directory, **pipes) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 141


@pytest.mark.gate
def test_many_are_all_listed_and_in_plain_text(cli: Cli) -> None:
    client, names = cli.client(), [f"n{number:05}" for number in range(MOST_RICH_ROWS + 1)]
    for name in names:
        assert client.lock(name).acquire()
    assert [info["name"] for info in cli.json("ls")] == names
    terminal = cli.terminal("ls")
    assert terminal.end() == 0
    assert [row["NAME"] for row in rows(terminal.text)] == names, "no table of rich has so many rows"
    assert harmful(terminal.text) == []


def test_a_terminal_without_rich_gets_plain_text(cli: Cli, tmp_path: Path) -> None:
    """As where the extra is not installed."""
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "rich.py").write_text("raise ImportError")
    cli.holder(owner="ana").takes("a")
    terminal, top = (cli.terminal(command, PYTHONPATH=str(tmp_path / "without")) for command in ("ls", "top"))
    assert (terminal.end(), top.end()) == (0, 0)
    assert [row["NAME"] for row in rows(terminal.text)] == ["a"]
    assert "pip install 'dibs[cli]'" in top.text
    assert "held 1" in top.text
    assert harmful(terminal.text + top.text) == []


@pytest.mark.gate
@pytest.mark.skipif(not RICH, reason="rich, the extra cli, is not installed")
class TestWithRich:
    def test_a_terminal_gets_a_table(self, cli: Cli) -> None:
        ana, bob = cli.holder(owner="[red]ana[/red]"), cli.holder()
        ana.takes("a\u202e[b]:smile:")
        bob.asks("a\u202e[b]:smile:")
        cli.in_queue("a\u202e[b]:smile:", 1)
        terminal = cli.terminal("ls", COLUMNS="200")
        assert terminal.end() == 0
        assert "┃" in terminal.text
        assert "\x1b[33m" in terminal.text, "somebody waits"
        assert r"a\u202e[b]:smile:" in terminal.text, "foreign text is no markup"
        assert "[red]ana[/red]@" in terminal.text

    def test_where_a_table_would_break_a_token_there_is_none(self, cli: Cli) -> None:
        token = cli.holder(owner="ana").takes("a")
        terminal = cli.terminal("ls", COLUMNS="60")
        assert terminal.end() == 0
        assert [(row["NAME"], row["TOKEN"]) for row in rows(terminal.text)] == [("a", str(token))]

    @pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, ASCII], ids=["NO_COLOR", "dumb", "ascii"])
    def test_a_terminal_without_colour_or_unicode(self, cli: Cli, more: dict[str, str]) -> None:
        cli.holder(owner="ana").takes("a")
        terminal = cli.terminal("ls", COLUMNS="200", **more)
        assert terminal.end() == 0
        assert "ana@" in terminal.text
        assert ("┃" in terminal.text) == ("NO_COLOR" in more)
        if "LC_ALL" in more:
            assert terminal.text.isascii()
            assert "|" in terminal.text
        else:
            assert harmful(terminal.text) == []
