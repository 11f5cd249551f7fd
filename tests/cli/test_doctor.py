"""`dibs doctor`, also on machines made for it: small disks, layers, namespaces, no /proc."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import sys
from pathlib import Path

import pytest

import dibs
from cli.commands import COMMAND, Cli, Done

MOUNTS = ("unshare", "--mount", "--propagation", "private")
LINE = re.compile(r"(ok|note|DANGER) +\S.*")


def doctor(cli: Cli, *words: str, inside: tuple[str, ...] = (), url: str | None = None) -> Done:
    """In this process, or behind words that prepare another machine."""
    if not inside:
        return cli.run("doctor", "--url", url or cli.url, *words)
    return cli.process(*inside, *COMMAND, "doctor", "--url", url or cli.url, *words)


def on_a_machine(cli: Cli, *words: str, prepared: str = "true") -> tuple[str, ...]:
    """A command prefix that enters new namespaces, and runs the shell code `prepared` in them first."""
    inside = (*words, "sh", "-ec", f'{prepared}; exec "$@"', "sh")
    done = cli.process(*inside, "true")
    if done.returncode:
        pytest.skip(f"there can be no such machine here: {done.stderr.strip()}")
    return inside


def on_a_disk(cli: Cli, options: str, fill: str = "true") -> tuple[str, ...]:
    prepared = f"mount -t tmpfs -o {options},mode=0700 tmpfs {cli.directory}; {fill.format(cli.directory)}"
    return on_a_machine(cli, *MOUNTS, prepared=prepared)


def told(done: Done, word: str) -> list[str]:
    """The findings of one sort."""
    assert done.stderr == "", done.stderr
    return [line[len(word) :].strip() for line in done.stdout.splitlines()[1:] if line.startswith(f"{word} ")]


def about(texts: list[str], *words: str) -> str:
    """The one of them that has these words."""
    found = [text for text in texts if all(word in text for word in words)]
    assert len(found) == 1, f"{words} in {texts}"
    return found[0]


def test_what_it_says_of_a_good_place_in_lines_and_as_json(cli: Cli) -> None:
    with cli.client().lock("a") as hold:
        done = doctor(cli)
        hold.check()
    first, *others = done.stdout.splitlines()
    versions = f"SQLite {sqlite3.sqlite_version}, dibs {dibs.__version__}, Python {sys.version.split()[0]}"
    assert first == f"{cli.url}, {versions}"
    assert [line for line in others if not LINE.fullmatch(line)] == []
    about(told(done, "ok"), "at most one valid holder")
    about(told(done, "ok"), "first come, first served")
    assert all("Fix: " in note for note in told(done, "note"))
    assert (done.returncode, told(done, "DANGER")) == (0, [])
    head, *objects = cli.json("doctor")
    assert (head["level"], head["what"]) == ("about", first)
    assert all(set(finding) == {"level", "what", "fix"} for finding in (head, *objects))
    shown = {"promise": "ok", "note": "note", "danger": "DANGER"}
    assert [
        f"{shown[one['level']]:<6}  {one['what']}" + (f". Fix: {one['fix']}" if one["fix"] else "") for one in objects
    ] == others


def test_a_disk_in_memory(cli: Cli) -> None:
    done = doctor(cli, inside=on_a_disk(cli, "size=64m"))
    about(told(done, "note"), "(tmpfs)", "reboot")
    about(told(done, "ok"), "until the machine restarts")
    assert "power cut" not in done.stdout
    assert done.returncode == 0


@pytest.mark.gate
@pytest.mark.parametrize(("size", "words"), [("size=4m", "MB are left"), ("size=64m,nr_inodes=40", "more files fit")])
def test_a_disk_with_little_room(cli: Cli, size: str, words: str) -> None:
    done = doctor(cli, inside=on_a_disk(cli, size))
    assert "Fix: " in about(told(done, "DANGER"), words)
    assert done.returncode == 1


@pytest.mark.gate
def test_a_disk_without_any(cli: Cli) -> None:
    done = doctor(cli, inside=on_a_disk(cli, "size=256k", "! cat /dev/zero 2> /dev/null > {}/filler"))
    assert (done.returncode, done.stdout) == (69, "")
    assert cli.url in done.stderr
    assert done.stderr.endswith("Next: make room\n")


@pytest.mark.gate
def test_a_layer_of_a_container(cli: Cli, tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir(mode=0o700)
    layers = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    machine = on_a_machine(cli, *MOUNTS, prepared=f"mount -t overlay overlay -o {layers} {tmp_path}/merged")
    done = doctor(cli, inside=machine, url=f"sqlite:///{tmp_path}/merged/locks.db")
    about(told(done, "note"), "(overlay)", "another container")
    assert done.returncode == 0


@pytest.mark.gate
def test_a_container(cli: Cli) -> None:
    done = doctor(cli, inside=on_a_machine(cli, "unshare", "--pid", "--fork", "--mount-proc"))
    about(told(done, "note"), "in a container", str(cli.directory))


@pytest.mark.gate
def test_a_time_namespace(cli: Cli, tmp_path: Path) -> None:
    assert "time namespace" not in doctor(cli).stdout
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    machine = on_a_machine(cli, "unshare", "--time", "--boottime", "86400", "--fork")
    there = doctor(cli, inside=machine, url=f"sqlite:///{elsewhere}/locks.db")
    about(told(there, "note"), "time namespace", "86400")
    refused = doctor(cli, inside=machine)
    assert refused.returncode == 69
    assert "another time namespace" in refused.stderr


@pytest.mark.gate
def test_without_proc(cli: Cli) -> None:
    # Without /proc only a short path will do for sockets.
    prepared = f"mount --bind {cli.directory} /mnt; mount -t tmpfs tmpfs /proc"
    done = doctor(cli, inside=on_a_machine(cli, *MOUNTS, prepared=prepared), url="sqlite:////mnt/locks.db")
    assert done.returncode == 69
    assert "Next: mount /proc" in done.stderr


@pytest.mark.gate
def test_without_a_clock_that_counts_suspension(cli: Cli) -> None:
    program = "import sys, time; del time.CLOCK_BOOTTIME; from dibs.cli.main import main; sys.exit(main(sys.argv[1:]))"
    about(told(cli.process(sys.executable, "-c", program, "doctor", "--url", cli.url), "note"), "suspended")


def test_a_check_reads_stdout_when_the_store_does_not_answer(cli: Cli) -> None:
    with socket.socket() as bound:  # nobody listens there, and nobody else gets the port meanwhile
        bound.bind(("127.0.0.1", 0))
        url = f"zookeeper://127.0.0.1:{bound.getsockname()[1]}"
        done = doctor(cli, "--json", "--timeout", "200ms", url=url)
    assert done.returncode == 69
    (said,) = map(json.loads, done.stdout.splitlines())
    assert (set(said), said["level"]) == ({"level", "what", "fix"}, "unreachable")
    assert url in said["what"]
    assert said["fix"] in said["what"]
    assert done.stderr == f"dibs doctor: {said['what']}\n"


def test_usage(cli: Cli) -> None:
    for words, said in {
        ("--timeout", "soon"): "not a duration",
        ("--ddl",): "needs no statements",
        ("extra",): "extra",
        ("--jso",): "--jso",
        ("--url", "memory://"): "private to one process",
        ("--url", "nonsense"): "scheme://",
    }.items():
        done = doctor(cli, *words)
        assert (done.returncode, done.stdout) == (64, "")
        assert done.stderr.startswith("dibs doctor: ")
        assert said in done.stderr
    assert list(cli.directory.iterdir()) == [], "nothing was made"


@pytest.mark.gate
def test_colour_is_for_terminals(cli: Cli) -> None:
    plain = doctor(cli).stdout
    assert "\033" not in plain
    for more in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
        terminal = cli.terminal("doctor", **more)
        assert terminal.end() == 0
        assert ("\033[32mok" in terminal.text) == (not more)
        assert re.sub(r"\033\[[\d;]*m", "", terminal.text) == plain
