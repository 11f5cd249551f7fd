"""Every snippet of docs/running-jobs.md runs: its commands as processes, as cron, a unit, a pod or a step starts them.

The shop's programs, which print that they ran, `pip`, `docker` and `ssh` are replaced. There is no cluster
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import dibs
from cli.commands import ROOT, Place
from lab.servers import ports
from lab.servers.shared_postgresql import postgresql
from process.children import until

PAGE = ROOT / "docs" / "running-jobs.md"
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^# ([\w.-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The name that it gives itself in a comment, "" if it gives none."""
        found = _FILE.search(self.text)
        return found[1] if found else ""

    def __str__(self) -> str:
        return f"{self.language}:{self.line}{f':{self.file}' if self.file else ''}"


def blocks() -> list[Block]:
    text = PAGE.read_text(encoding="utf-8")
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in _FENCED.finditer(text)]


@dataclass(frozen=True)
class Job:
    """One `dibs run` as cron, a unit or a step starts it, with nothing of this process. A shell may expand `line`."""

    line: str
    argv: Sequence[str]
    env: dict[str, str]
    directory: Path

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line)

    @property
    def name(self) -> str:
        """The lock's."""
        return self.words[self.words.index("run") + 1]

    @property
    def options(self) -> list[str]:
        return self.words[self.words.index("run") + 2 : self.words.index("--")]

    @property
    def url(self) -> str:
        return self.env.get("DIBS_URL") or f"sqlite:///{self.env['HOME']}/.local/state/dibs/locks.db"


def mappings(node: Any) -> Iterator[dict[Any, Any]]:
    """Every mapping in a document of mappings and sequences."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
        yield from mappings(child)


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
    yield made
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


# How cron, systemd, Kubernetes and CI start them.


def cron(block: Block, place: Place) -> Iterator[Job]:
    env = place.environment(PATH="/usr/bin:/bin")
    for line in place.here(block.text).splitlines():
        if assigned := re.fullmatch(r"(\w+)=(.*)", line):
            env[assigned[1]] = assigned[2]
        elif line:
            *_, command = line.split(maxsplit=5)
            assert not re.search(r"(?<!\\)%", command), "cron would cut it off there"
            command = command.replace("\\%", "%")
            yield Job(command, [env["SHELL"], "-c", command], env, place.home)


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
    yield Job(start, shlex.split(start), env, place.home)


def document(block: Block) -> dict[Any, Any]:
    loaded = yaml.safe_load(block.text)
    assert isinstance(loaded, dict)
    return loaded


def kubernetes(block: Block, place: Place) -> Iterator[Job]:
    for found in mappings(document(block)):
        if found.get("command", [""])[0] == "dibs":
            assert [one["name"] for one in found["env"] if "secretKeyRef" in one["valueFrom"]] == ["DIBS_URL"]
            env = place.environment(KUBERNETES_SERVICE_HOST="10.0.0.1", HOSTNAME="pod-1", DIBS_URL=place.url)
            yield Job(shlex.join(found["command"]), found["command"], env, place.shop)


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
    yield Job(line, ["bash", "-e", "step"], env, place.shop)


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


@pytest.mark.gate
@pytest.mark.parametrize("block", of(*READERS), ids=str)
def test_what_is_started_waits_its_turn_and_runs(block: Block, place: Place) -> None:
    found = jobs(block, place)
    assert len(found) == block.text.count("dibs run") + block.text.count('"dibs", "run"')
    for one in found:
        how = one.argv, one.env, one.directory
        with dibs.connect(one.url) as client:
            with client.lock(one.name):
                started = place.start(*how)
                if "--skip" in one.options:
                    assert (started.end(), started.text, started.errors) == (0, "", "")
                    about = {}
                else:
                    about = until(lambda one=one: client.inspect(one.name).waiters, what=f"a waiter: {one}")[0].info
            ran = place.start(*how) if "--skip" in one.options else started
            assert (ran.end(), re.sub(r"waiting for .*\n", "", ran.errors)) == (0, "")
        programs = re.findall(r"[\w-]+\.sh\b", one.line)
        assert programs
        assert re.findall(rf"^(\S+) under {one.name} by [1-9]\d+:", ran.text, re.MULTILINE) == programs
        if any("url=" in option for option in one.options):
            assert about["url"].startswith("https://git.example/")
        if "day=$(date +%F)" in one.options:
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", about["day"])


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
    started = place.start(one.argv, one.env, one.directory)
    assert started.next_line() == "begun"
    started.signal(signal.SIGTERM)
    return started.end()


@pytest.mark.gate
@pytest.mark.parametrize("block", [block for block in of("ini") if "[Service]" in block.text], ids=str)
def test_a_stopped_unit_ends_with_a_status_that_it_takes_for_success(block: Block, place: Place) -> None:
    (one,) = jobs(block, place)
    place.program(Path(one.words[-1]).name, "echo begun; exec sleep 60")
    status = _terminated(one, place)  # KillMode=mixed: the main process alone hears it
    service = unit(block)["Service"]
    assert str(status) in service["SuccessExitStatus"].split()
    assert service["KillMode"] == "mixed"
    _is_free(one)


@pytest.mark.gate
def test_a_step_that_is_cancelled_gives_the_lock_back(place: Place) -> None:
    """The runner signals the step's first process only: without `exec` that would be a shell, which tells nobody."""
    (block,) = [block for block in of("yaml") if "runs-on" in block.text]
    (one,) = jobs(block, place)
    place.program("deploy.sh", "echo begun; exec sleep 60")
    assert _terminated(one, place) == 143
    _is_free(one)


@pytest.mark.gate
def test_make(place: Place) -> None:
    (block,) = of("makefile")
    place.programs(block.text)
    parts = place.shop / "parts"
    parts.mkdir()
    (place.shop / "Makefile").write_text(block.text)
    (parts / "Makefile").write_text("all:\n\t@echo built under $(DIBS_NAME), $(MAKEFLAGS)\n")
    env = place.environment()
    status, out, err = place.run(["make", "deploy", "VERSION=v8"], env)
    assert (status, err) == (0, "")
    assert re.search(r"^deploy.sh under deploy by \d+: v8$", out, re.MULTILINE)
    status, out, err = place.run(["make", "-j2", "all"], env)
    assert (status, err) == (0, ""), "no word of a job server that is not there"
    assert re.search(rf"^built under build:{place.shop}, .*--jobserver-auth=", out, re.MULTILINE)
    place.program("deploy.sh", "exit 76")
    status, _, err = place.run(["make", "deploy"], env)
    assert status == 2
    assert "Error 76" in err


def _saved(file: str, place: Place) -> Path:
    path = place.program(file, "")
    path.write_text(script(file).text)
    return path


@pytest.mark.gate
def test_a_script_tells_the_statuses_apart(place: Place) -> None:
    path = _saved("nightly.sh", place)
    for status, ends, says in (
        (0, 0, "closed"),
        (75, 0, "another process"),
        (76, 76, "lost the lock half-way"),
        (3, 3, "failed: 3"),
    ):
        place.program("close-day.sh", f"exit {status}")
        ended, out, err = place.run([str(path)], place.environment())
        assert ended == ends
        assert says in (err if ends else out)


def test_a_script_takes_the_lock_for_itself(place: Place) -> None:
    path = _saved("refresh.sh", place)
    place.program("fetch.sh", 'echo "fetched under $DIBS_NAME"')
    place.program("index.sh", 'echo "indexed under $DIBS_NAME"')
    one = [str(path)], place.environment()
    assert place.run(*one) == (0, "fetched under refresh\nindexed under refresh\n", "")
    with dibs.connect(place.url) as client, client.lock("refresh"):
        status, out, err = place.run(*one)
    assert (status, out) == (75, "")
    assert "not free" in err


LEDGER = "CREATE TABLE ledger (id INTEGER PRIMARY KEY, closed DATE, fence BIGINT NOT NULL DEFAULT 0)"
LATER = 2**62


def _closes(file: str, place: Place, ask: Callable[[str], str], **env: str) -> None:
    """It closes the day with its token; and once a later holder was there, it does not."""
    ask(LEDGER)
    ask("INSERT INTO ledger (id) VALUES (1)")
    path = _saved(file, place)
    one = [str(place.bin / "dibs"), "run", "ledger", "--", str(path)], place.environment(**env)
    before = _next_token(place)
    assert place.run(*one) == (0, "", "")
    assert before < int(ask("SELECT fence FROM ledger WHERE closed IS NOT NULL")) < _next_token(place)
    ask(f"UPDATE ledger SET closed = NULL, fence = {LATER}")
    status, out, err = place.run(*one)
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


@pytest.mark.gate
def test_a_script_fences_itself_in_postgresql(place: Place) -> None:
    server = postgresql()
    login = {"PGUSER": "dibs", "PGPASSWORD": "dibs", "PGDATABASE": "postgres"}
    try:
        _closes("close-day-pg.sh", place, server.ask, PGHOST=ports.HOST, PGPORT=str(server.port), **login)
    finally:
        server.ask("DROP TABLE IF EXISTS ledger")


@pytest.mark.gate
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
    status, out, err = place.run(["sh", "-c", place.here(block.text)], env)
    assert (status, err) == (0, "")
    assert re.fullmatch(says, out)
