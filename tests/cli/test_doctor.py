"""`dibs doctor` as a process of its own, on machines made for it: small disks, layers, namespaces, no /proc."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import dibs

COMMAND = (sys.executable, "-m", "dibs.cli", "doctor")
MOUNTS = ("unshare", "--mount", "--propagation", "private")
LONG_LOG = 16_000_000
LINE = re.compile(r"(ok|note|DANGER) +\S.*")


def environment(**more: str) -> dict[str, str]:
    unwanted = ("DIBS_URL", "KUBERNETES_SERVICE_HOST", "NO_COLOR")
    return {**{name: value for name, value in os.environ.items() if name not in unwanted}, **more}


def run(words: Sequence[object], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=50, check=False, env=environment(**more)
    )


def doctor(url: str, *words: str, inside: Sequence[str] = (), **more: str) -> subprocess.CompletedProcess[str]:
    return run([*inside, *COMMAND, "--url", url, *words], **more)


def url_in(directory: Path) -> str:
    return f"sqlite:///{directory}/locks.db"


def on_a_machine(*words: str, prepared: str = "true") -> list[str]:
    """What goes before a command so that it runs in namespaces of its own, as a shell has prepared them."""
    inside = [*words, "sh", "-ec", f'{prepared}; exec "$@"', "sh"]
    done = run([*inside, "true"])
    if done.returncode:
        pytest.skip(f"there can be no such machine here: {done.stderr.strip()}")
    return inside


def told(done: subprocess.CompletedProcess[str], word: str) -> list[str]:
    """The findings of one sort."""
    assert done.stderr == "", done.stderr
    return [line[len(word) :].strip() for line in done.stdout.splitlines()[1:] if line.startswith(f"{word} ")]


def about(texts: list[str], *words: str) -> str:
    """The one of them that has these words."""
    found = [text for text in texts if all(word in text for word in words)]
    assert len(found) == 1, f"{words} in {texts}"
    return found[0]


def test_what_it_says_of_a_good_place(tmp_path: Path) -> None:
    done = doctor(url_in(tmp_path))
    first, *others = done.stdout.splitlines()
    versions = f"SQLite {sqlite3.sqlite_version}, dibs {dibs.__version__}, Python {sys.version.split()[0]}"
    assert first == f"{url_in(tmp_path)}, {versions}"
    assert [line for line in others if not LINE.fullmatch(line)] == []
    about(told(done, "ok"), "at most one valid holder")
    about(told(done, "ok"), "first come, first served")
    assert all("Cure: " in note for note in told(done, "note"))
    assert (done.returncode, told(done, "DANGER")) == (0, [])


def test_it_says_the_same_as_json(tmp_path: Path) -> None:
    done = doctor(url_in(tmp_path), "--json")
    first, *others = [json.loads(line) for line in done.stdout.splitlines()]
    lines = doctor(url_in(tmp_path)).stdout.splitlines()
    assert (first["level"], first["what"]) == ("about", lines[0])
    assert all(set(finding) == {"level", "what", "cure"} for finding in others)
    shown = {"promise": "ok", "note": "note", "danger": "DANGER"}
    assert [
        f"{shown[one['level']]:<6}  {one['what']}" + (f". Cure: {one['cure']}" if one["cure"] else "") for one in others
    ] == lines[1:]


def test_the_default_store(tmp_path: Path) -> None:
    done = run(COMMAND, XDG_STATE_HOME=str(tmp_path))
    assert "(this machine only)" in done.stdout.splitlines()[0]
    about(told(done, "note"), "this machine only", "DIBS_URL")


def test_a_disk_in_memory(tmp_path: Path) -> None:
    machine = on_a_machine(*MOUNTS, prepared=f"mount -t tmpfs -o size=64m,mode=0700 tmpfs {tmp_path}")
    done = doctor(url_in(tmp_path), inside=machine)
    about(told(done, "note"), "(tmpfs)", "reboot")
    about(told(done, "ok"), "until the machine restarts")
    assert "power cut" not in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(("size", "words"), [("size=4m", "MB are left"), ("size=64m,nr_inodes=40", "more files fit")])
def test_a_disk_with_little_room(tmp_path: Path, size: str, words: str) -> None:
    machine = on_a_machine(*MOUNTS, prepared=f"mount -t tmpfs -o {size},mode=0700 tmpfs {tmp_path}")
    done = doctor(url_in(tmp_path), inside=machine)
    assert "Cure: " in about(told(done, "DANGER"), words)
    assert done.returncode == 1


@pytest.mark.parametrize(
    "fill",
    [
        "! cat /dev/zero 2> /dev/null > {}/filler",
        "seq -f {}/%g 17 | xargs touch",
        "! seq -f {}/%g 20 | xargs touch 2> /dev/null",
    ],
    ids=["room", "files", "any file"],
)
def test_a_disk_without_any(tmp_path: Path, fill: str) -> None:
    prepared = f"mount -t tmpfs -o size=256k,nr_inodes=20,mode=0700 tmpfs {tmp_path}; {fill.format(tmp_path)}"
    done = doctor(url_in(tmp_path), inside=on_a_machine(*MOUNTS, prepared=prepared))
    assert (done.returncode, done.stdout) == (69, "")
    assert url_in(tmp_path) in done.stderr
    assert done.stderr.endswith("Next: make room\n")


def test_a_layer_of_a_container(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir(mode=0o700)
    layers = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    machine = on_a_machine(*MOUNTS, prepared=f"mount -t overlay overlay -o {layers} {tmp_path}/merged")
    done = doctor(url_in(tmp_path / "merged"), inside=machine)
    about(told(done, "note"), "(overlay)", "another container")
    assert done.returncode == 0


def test_a_container(tmp_path: Path) -> None:
    done = doctor(url_in(tmp_path), inside=on_a_machine("unshare", "--pid", "--fork", "--mount-proc"))
    about(told(done, "note"), "in a container", str(tmp_path))


def test_a_time_namespace(tmp_path: Path) -> None:
    outside = doctor(url_in(tmp_path))
    assert "time namespace" not in outside.stdout
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    machine = on_a_machine("unshare", "--time", "--boottime", "86400", "--fork")
    about(told(doctor(url_in(elsewhere), inside=machine), "note"), "time namespace", "86400")
    refused = doctor(url_in(tmp_path), inside=machine)
    assert refused.returncode == 69
    assert "another time namespace" in refused.stderr


def test_without_proc(tmp_path: Path) -> None:
    # Without /proc only a short path will do for sockets.
    prepared = f"mount --bind {tmp_path} /mnt; mount -t tmpfs tmpfs /proc"
    done = doctor(url_in(Path("/mnt")), inside=on_a_machine(*MOUNTS, prepared=prepared))
    assert done.returncode == 69
    assert "which boot of the machine this is. Next: mount /proc" in done.stderr


def test_without_a_clock_that_counts_suspension(tmp_path: Path) -> None:
    program = "import sys, time; del time.CLOCK_BOOTTIME; from dibs.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = run([sys.executable, "-c", program, "doctor", "--url", url_in(tmp_path)])
    about(told(done, "note"), "suspended")


def test_a_reader_that_does_not_end(tmp_path: Path) -> None:
    url, path = url_in(tmp_path), tmp_path / "locks.db"
    with dibs.connect(url) as client:
        client.inspect("a")
        with closing(sqlite3.connect(path)) as foreign:
            foreign.execute("BEGIN")
            foreign.execute("SELECT * FROM store").fetchall()
            value = b"x" * 65_536
            while (tmp_path / "locks.db-wal").stat().st_size <= LONG_LOG:
                client.cell("large").update(lambda _: value)
            done = doctor(url)
            about(told(done, "DANGER"), "log has grown", f"lsof {path}-wal")
            assert done.returncode == 1
        assert doctor(url).returncode == 0


@pytest.mark.parametrize("spoil", ["link", "mode", "other", "nowhere"])
def test_what_the_store_refuses_is_an_error(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "locks.db"
    if spoil == "link":
        path.symlink_to(tmp_path / "elsewhere.db")
    elif spoil == "mode":
        path.touch(mode=0o644)
        path.chmod(0o644)
    elif spoil == "other":
        path.touch(mode=0o600)
        path.write_bytes(b"no database " * 100)
    done = doctor(url_in(tmp_path / "nowhere" if spoil == "nowhere" else tmp_path))
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith("dibs doctor: sqlite:///")
    assert "Next: " in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ddl"], "makes its own tables"),
        (["extra"], "extra"),
        (["--jso"], "--jso"),
        (["--url", "memory://"], "one store per process"),
        (["--url", "nonsense"], "scheme://"),
    ],
)
def test_usage(tmp_path: Path, words: list[str], said: str) -> None:
    done = doctor(url_in(tmp_path), *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("dibs doctor: ")
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def on_a_terminal(url: str, **more: str) -> str:
    """What it shows there."""
    ours, its = pty.openpty()
    try:
        with subprocess.Popen([*COMMAND, "--url", url], stdout=its, env=environment(**more)) as process:
            os.close(its)
            shown = b""
            while part := _read(ours):
                shown += part
            assert process.wait(50) == 0
    finally:
        os.close(ours)
    return shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side was closed
        return b""


def test_colour_is_for_terminals(tmp_path: Path) -> None:
    shown = on_a_terminal(url_in(tmp_path), TERM="xterm")
    assert "\033[32mok" in shown
    plain = doctor(url_in(tmp_path), TERM="xterm").stdout
    assert "\033" not in plain
    assert re.sub(r"\033\[[\d;]*m", "", shown).replace("\r\n", "\n") == plain
    assert on_a_terminal(url_in(tmp_path), TERM="xterm", NO_COLOR="1").replace("\r\n", "\n") == plain
    assert on_a_terminal(url_in(tmp_path), TERM="dumb").replace("\r\n", "\n") == plain


def test_a_lock_goes_on_while_it_is_looked_at(tmp_path: Path) -> None:
    with dibs.connect(url_in(tmp_path)) as client, client.lock("a", timeout=5) as hold:
        before = client.inspect("a")
        assert doctor(url_in(tmp_path)).returncode == 0
        hold.check()
        assert [one.token for one in client.inspect("a").holders] == [one.token for one in before.holders]
