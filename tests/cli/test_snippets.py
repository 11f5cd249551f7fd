"""Every snippet of docs/running-jobs.md runs: its commands as processes, as cron, a unit, a pod or a step starts them.

What stands in for others: the shop's programs, which say that they ran; `pip`, `docker` and `ssh`. There is no cluster
and no CI service; PostgreSQL is a real one, where it is installed.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import dibs
from cli.snippets import Block, Job, Place, blocks, in_queue, job, mappings
from lab.servers import ports
from lab.servers.shared_postgresql import postgresql

BLOCKS = blocks()
RUN_URL = "https://git.example/shop/runs/42"
GITHUB = {
    "secrets.DIBS_URL": "{url}",
    "github.server_url": "https://git.example",
    "github.repository": "shop",
    "github.run_id": "42",
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.close()


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def script(file: str) -> Block:
    (found,) = [block for block in of("sh") if block.file == file]
    return found


def line_with(word: str) -> Block:
    """A block of commands that is no file."""
    (found,) = [block for block in of("sh") if not block.file and block.text.startswith(word)]
    return found


# What whoever starts them would make of them.


def cron(block: Block, place: Place) -> Iterator[Job]:
    env = place.environment(PATH="/usr/bin:/bin")
    for line in place.here(block.text).splitlines():
        if assigned := re.fullmatch(r"(\w+)=(.*)", line):
            env[assigned[1]] = assigned[2]
        elif line:
            *_, command = line.split(maxsplit=5)
            assert not re.search(r"(?<!\\)%", command), "cron would cut it off there"
            command = command.replace("\\%", "%")
            yield job(command, [env["SHELL"], "-c", command], env, place.home)


def unit(block: Block) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(block.text)
    return parser


def systemd(block: Block, place: Place) -> Iterator[Job]:
    if block.file.endswith(".timer"):
        return
    service = unit(block)["Service"]
    environment = (
        [service["Environment"]] if "Environment" in service else (place.shop / "dibs.env").read_text().split()
    )
    env = place.environment(PATH="/usr/bin:/bin", **dict(place.here(line).split("=", 1) for line in environment))
    start = place.here(service["ExecStart"])
    yield job(start, shlex.split(start), env, place.home)


def document(block: Block) -> dict[Any, Any]:
    loaded = yaml.safe_load(block.text)
    assert isinstance(loaded, dict)
    return loaded


def kubernetes(block: Block, place: Place) -> Iterator[Job]:
    for found in mappings(document(block)):
        if found.get("command", [""])[0] == "dibs":
            assert [one["name"] for one in found["env"] if "secretKeyRef" in one["valueFrom"]] == ["DIBS_URL"]
            env = place.environment(KUBERNETES_SERVICE_HOST="10.0.0.1", HOSTNAME="pod-1", DIBS_URL=place.url)
            yield Job(found["command"], found["command"], env, place.shop)


def ci(block: Block, place: Place) -> Iterator[Job]:
    """Steps of GitHub are scripts of their own; GitLab's are lines of one."""
    env = place.environment(DIBS_URL=place.url, GITHUB_SHA="v8", CI_COMMIT_SHA="v8", CI_JOB_URL=RUN_URL)
    loaded = document(block)
    if "script" in (deploy := loaded.get("deploy", {})):
        (line,) = [line for line in deploy["script"] if "dibs run" in line]
        text = "\n".join(deploy["script"])
    else:
        deploy = loaded["jobs"]["deploy"]
        for name, value in deploy["env"].items():
            env[name] = re.sub(r"\$\{\{ (\S+) \}\}", lambda found: GITHUB[found[1]], value).format(url=place.url)
        (text,) = (line,) = [step["run"] for step in deploy["steps"] if "dibs run" in step.get("run", "")]
    (place.shop / "step").write_text(text)
    yield job(line, ["bash", "-e", "step"], env, place.shop)


def yaml_of(block: Block, place: Place) -> Iterator[Job]:
    return (kubernetes if "apiVersion" in document(block) else ci)(block, place)


READERS: dict[str, Callable[[Block, Place], Iterator[Job]]] = {"crontab": cron, "ini": systemd, "yaml": yaml_of}
TRIED_BY_THEMSELVES = {"makefile", "sh"}
FILES = {"nightly.sh", "refresh.sh", "close-day.sh", "close-day-pg.sh", ""}


def jobs(block: Block, place: Place) -> list[Job]:
    place.programs(block.text)
    place.program("pip", "exit 0", place.bin)
    (place.shop / "dibs.env").write_text(f"DIBS_URL={place.url}\n")
    return list(READERS[block.language](block, place))


def test_no_block_is_left_out() -> None:
    assert {block.language for block in BLOCKS} == READERS.keys() | TRIED_BY_THEMSELVES
    assert {block.file for block in of("sh")} == FILES
    assert len([block for block in of("sh") if not block.file]) == 2
    assert len(of("yaml")) == 5
    assert len(of("ini")) == 4


@pytest.mark.parametrize("block", of(*READERS), ids=str)
def test_what_is_started_waits_its_turn_and_runs(block: Block, place: Place) -> None:
    found = jobs(block, place)
    assert len(found) == block.text.count("dibs run") + block.text.count('"dibs", "run"')
    for one in found:
        if "--skip" in one.options:
            _skips(one, place)
        else:
            _waits(one, place)


def _skips(one: Job, place: Place) -> None:
    _ran(one, *place.run(one))
    with dibs.connect(one.url) as client, client.lock(one.name):
        assert place.run(one) == (0, "", "")


def _waits(one: Job, place: Place) -> None:
    with dibs.connect(one.url) as client:
        with client.lock(one.name):
            started = place.start(one)
            said = in_queue(client, one.name)
        _ran(one, *place.end(started))
    if any("url=" in option for option in one.options):
        assert said["url"].startswith("https://git.example/")
    if "day=$(date +%F)" in one.options:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", said["day"])


def _ran(one: Job, status: int, out: str, err: str) -> None:
    """It may have said whom it waits for."""
    assert (status, re.sub(r"waiting for .*\n", "", err)) == (0, "")
    wanted = re.findall(r"[\w-]+\.sh\b", " ".join(one.words))
    assert wanted
    assert re.findall(rf"^(\S+) under {one.name} by [1-9]\d+:", out, re.MULTILINE) == wanted


def test_systemd_takes_the_units(place: Place) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed; the units are parsed and their commands run all the same")
    files = []
    for block in of("ini"):
        place.programs(block.text)
        files.append(place.shop / block.file)
        files[-1].write_text(place.here(block.text))
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one", *files]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def _is_free(one: Job) -> None:
    with dibs.connect(one.url) as client, client.lock(one.name, timeout=0):
        pass


def _terminated(one: Job, place: Place) -> int:
    """Its status, once its command has begun and it was told to end."""
    started = place.start(one)
    assert started.stdout is not None
    assert started.stdout.readline() == "begun\n"
    started.send_signal(signal.SIGTERM)
    status, _, _ = place.end(started)
    return status


@pytest.mark.parametrize("block", [block for block in of("ini") if "[Service]" in block.text], ids=str)
def test_a_stopped_unit_ends_with_a_status_that_it_takes_for_success(block: Block, place: Place) -> None:
    (one,) = jobs(block, place)
    place.program(Path(one.words[-1]).name, "echo begun; exec sleep 60")
    status = _terminated(one, place)  # KillMode=mixed: the main process alone hears it
    service = unit(block)["Service"]
    assert str(status) in service["SuccessExitStatus"].split()
    assert service["KillMode"] == "mixed"
    _is_free(one)


def test_a_step_that_is_cancelled_gives_the_lock_back(place: Place) -> None:
    """The runner signals the step's first process only: without `exec` that would be a shell, which tells nobody."""
    (block,) = [block for block in of("yaml") if "runs-on" in block.text]
    (one,) = jobs(block, place)
    place.program("deploy.sh", "echo begun; exec sleep 60")
    assert _terminated(one, place) == 143
    _is_free(one)


def test_make(place: Place) -> None:
    (block,) = of("makefile")
    place.programs(block.text)
    parts = place.shop / "parts"
    parts.mkdir()
    (place.shop / "Makefile").write_text(block.text)
    (parts / "Makefile").write_text("all:\n\t@echo built under $(DIBS_NAME), $(MAKEFLAGS)\n")
    env = place.environment()
    status, out, err = place.run(Job(["run", "deploy", "--"], ["make", "deploy", "VERSION=v8"], env, place.shop))
    assert (status, err) == (0, "")
    assert re.search(r"^deploy.sh under deploy by \d+: v8$", out, re.MULTILINE)
    status, out, err = place.run(Job([], ["make", "-j2", "all"], env, place.shop))
    assert (status, err) == (0, ""), "no word of a job server that is not there"
    assert re.search(rf"^built under build:{place.shop}, .*--jobserver-auth=", out, re.MULTILINE)
    place.program("deploy.sh", "exit 76")
    status, _, err = place.run(Job([], ["make", "deploy"], env, place.shop))
    assert status == 2
    assert "Error 76" in err


def _saved(file: str, place: Place) -> Path:
    path = place.program(file, "")
    path.write_text(script(file).text)
    return path


def test_a_script_tells_the_statuses_apart(place: Place) -> None:
    path = _saved("nightly.sh", place)
    for status, ends, says in (
        (0, 0, "closed"),
        (75, 0, "another process"),
        (76, 76, "lost the lock half-way"),
        (3, 3, "failed: 3"),
    ):
        place.program("close-day.sh", f"exit {status}")
        ended, out, err = place.run(Job([], [str(path)], place.environment(), place.shop))
        assert ended == ends
        assert says in (err if ends else out)


def test_a_script_takes_the_lock_for_itself(place: Place) -> None:
    path = _saved("refresh.sh", place)
    place.program("fetch.sh", 'echo "fetched under $DIBS_NAME"')
    place.program("index.sh", 'echo "indexed under $DIBS_NAME"')
    one = Job([], [str(path)], place.environment(), place.shop)
    assert place.run(one) == (0, "fetched under refresh\nindexed under refresh\n", "")
    with dibs.connect(place.url) as client, client.lock("refresh"):
        status, out, err = place.run(one)
    assert (status, out) == (75, "")
    assert "not free" in err


LEDGER = "CREATE TABLE ledger (id INTEGER PRIMARY KEY, closed DATE, fence BIGINT NOT NULL DEFAULT 0)"
LATER = 2**62


def _closes(file: str, place: Place, ask: Callable[[str], str], **env: str) -> None:
    """It closes the day with its token; and once a later holder was there, it does not."""
    ask(LEDGER)
    ask("INSERT INTO ledger (id) VALUES (1)")
    path = _saved(file, place)
    one = Job([], [str(place.bin / "dibs"), "run", "ledger", "--", str(path)], place.environment(**env), place.shop)
    before = _next_token(place)
    assert place.run(one) == (0, "", "")
    assert before < int(ask("SELECT fence FROM ledger WHERE closed IS NOT NULL")) < _next_token(place)
    ask(f"UPDATE ledger SET closed = NULL, fence = {LATER}")
    status, out, err = place.run(one)
    assert (status, out, err) == (1, "", "refused: a later holder was here\n")
    assert ask(f"SELECT count(*) FROM ledger WHERE closed IS NULL AND fence = {LATER}") == "1"


def _next_token(place: Place) -> int:
    """One more of the tokens."""
    with dibs.connect(place.url) as client, client.lock("ledger") as hold:
        return hold.token


def test_a_script_fences_itself_in_sqlite(place: Place) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("sqlite3 is not installed")

    def ask(sql: str) -> str:
        with closing(sqlite3.connect(place.shop / "shop.db")) as db, db:
            return str((db.execute(sql).fetchone() or [""])[0])

    _closes("close-day.sh", place, ask)


def test_a_script_fences_itself_in_postgresql(place: Place) -> None:
    server = postgresql()
    login = {"PGUSER": "dibs", "PGPASSWORD": "dibs", "PGDATABASE": "postgres"}
    try:
        _closes("close-day-pg.sh", place, server.ask, PGHOST=ports.HOST, PGPORT=str(server.port), **login)
    finally:
        server.ask("DROP TABLE IF EXISTS ledger")


@pytest.mark.parametrize(
    ("word", "instead", "says"),
    [
        ("docker", 'while [ "$1" != shop:8 ]; do shift; done; shift; exec "$@"', r"report.sh under report by \d+: \n"),
        ("ssh", 'shift; exec sh -c "$*"', r"deploy.sh under deploy by \d+: v8\n"),
    ],
    ids=["docker", "ssh"],
)
def test_commands_that_go_elsewhere(word: str, instead: str, says: str, place: Place) -> None:
    block = line_with(word)
    place.programs(block.text)
    place.program(word, instead, place.bin)
    env = place.environment(DIBS_URL=place.url)
    status, out, err = place.run(Job([], ["sh", "-c", place.here(block.text)], env, place.shop))
    assert (status, err) == (0, "")
    assert re.fullmatch(says, out)
