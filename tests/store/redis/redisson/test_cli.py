"""The command line on locks whose holders have ids, but mostly neither a token nor a start."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dibs
from cli.commands import Cli
from dibs.monitor import break_log
from lab.servers import shared_redis
from process.children import PATIENCE

HOLDER = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d{19}"
TOKENS = re.compile(r"token|\b1970-\d\d-|\b\d{5,}h\d+m", re.IGNORECASE)
"""Words that must not be shown for a holder without a token, whose age is unknown."""
SHOW_TOKEN = ("--", "sh", "-c", 'echo "${DIBS_TOKEN-unset} $DIBS_NAME $DIBS_LEASE"')


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    made.url = f"{shared_redis.fresh(tmp_path)}&layout=redisson"
    try:
        yield made
    finally:
        made.close()


def taken(lock: Any) -> Any:
    hold = lock.acquire(timeout=0)
    assert hold is not None
    return hold


def ids(cli: Cli, name: str = "a") -> list[str]:
    return [holder.owner for holder in cli.client().inspect(name).holders]


@pytest.mark.gate
def test_run_passes_no_token(cli: Cli) -> None:
    for kind in ([], ["--shared"], ["--exclusive"], ["--of", "2"]):
        done = cli.run("run", f"a{len(kind)}", *kind, *SHOW_TOKEN, DIBS_TOKEN="41")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"unset a{len(kind)} 30\n", ""), kind


@pytest.mark.gate
def test_run_says_that_it_lost_a_lock_without_a_token(cli: Cli) -> None:
    running = cli.start("run", "a", "--lease", "2", "--json", "--", "sh", "-c", "echo there; exec sleep 60")
    assert running.hear() == "there"
    (holder,) = ids(cli)
    assert cli.run("break", "a", "--holder", holder, "--yes").returncode == 0
    assert running.process.wait(PATIENCE) == 76
    _, (line,) = running.rest()
    lost = json.loads(line)
    assert (lost["event"], lost["reason"], lost["token"]) == ("lost", "broken", None)
    assert lost["text"].endswith('"a": the lock was taken away; the command was terminated')


def test_what_is_not_known_is_not_said(cli: Cli) -> None:
    client = cli.client(info={"command": "deploy.sh"})
    taken(client.lock("a"))
    taken(client.rwlock("b").read)
    (holder,) = ids(cli)
    assert re.fullmatch(HOLDER, holder)
    head, holds, lease = cli.run("show", "a").stdout.splitlines()
    assert head.endswith(": mutex, 1 holding, 0 waiting")
    assert holds == f"holds  {holder}"
    assert re.fullmatch(r" +lease +[\d.]+ s left", lease)
    assert " side     read\n" in cli.run("show", "b").stdout
    header, *rows = cli.run("ls").stdout.splitlines()
    assert len(rows) == 2
    assert rows[0][header.index("HELD FOR") : header.index("WAITING")].strip() == ""
    assert rows[0].endswith(" s"), "no token"
    top = cli.run("top", "--once").stdout
    assert "held 2   waiting 0   oldest wait 0 s" in top
    assert "does not show hosts and processes or the age of a hold or " in top
    for text in (cli.run("show", "a").stdout, *rows, *top.splitlines()[3:]):
        assert not TOKENS.search(text.partition(holder)[2]), text
    (listed,) = cli.json("show", "a")
    assert [(one["owner"], one["since"], one["token"]) for one in listed["holders"]] == [(holder, None, None)]


@pytest.mark.gate
def test_a_waiter_of_a_fair_lock_is_known_by_its_id_also_when_it_holds(cli: Cli) -> None:
    hold = taken(cli.client().lock("a", fair=True))
    watching = cli.start("watch", "a", "--json")
    assert json.loads(watching.hear())["event"] == "state"
    waits = threading.Thread(target=cli.client().lock("a", fair=True).acquire)
    waits.start()
    joined = json.loads(watching.hear())
    (waiter,) = joined["waiters"]
    assert (joined["event"], waiter["since"], waiter["token"]) == ("joined", None, None)
    shown = cli.run("show", "a").stdout
    assert shown.endswith(f"\n1st    {waiter['owner']}\n")
    header, row = cli.run("ls").stdout.splitlines()
    assert row[header.index("WAITING") : header.index("LEASE")].split() == ["1"], "no longest wait"
    assert cli.json("top", "--once")[0]["oldest_wait"] == 0
    hold.release()
    waits.join()
    changes = [json.loads(watching.hear()) for _ in range(2)]
    assert [one["event"] for one in changes] == ["ended", "took"]
    assert changes[1]["participant"]["owner"] == waiter["owner"]


@pytest.mark.gate
def test_a_busy_lock_names_its_holder(cli: Cli) -> None:
    taken(cli.client().lock("a"))
    (holder,) = ids(cli)
    done = cli.run("run", "a", "-n", "--", "true")
    assert (done.returncode, done.stderr) == (
        75, f'dibs run: "a": not free: held by {holder}. Next: dibs show a\n',
    )  # fmt: skip
    waited = cli.run("wait", "a", "--timeout", "0.1")
    assert (waited.returncode, f"held by {holder}. Next: dibs show a\n" in waited.stderr) == (75, True)


def test_break_prints_what_to_type_and_that_works(cli: Cli) -> None:
    for _ in range(2):
        taken(cli.client().rwlock("a").read)
    first, second = ids(cli)
    store = ["--url", cli.url]
    done = cli.run("break", "a", *store, DIBS_URL=None)
    head, *lines = done.stderr.splitlines()
    assert (done.returncode, head.endswith(": no --holder was given. Nothing was changed. Held by:")) == (64, True)
    assert lines[::2] == [f"  {first}", f"  {second}"]
    commands = [shlex.split(line) for line in lines[1::2]]
    assert commands == [["dibs", "break", "a", "--holder", one, *store] for one in (first, second)]
    broken = cli.run(*commands[1][1:], "--yes", "--reason", "it hangs", DIBS_URL=None)
    assert broken.returncode == 0
    assert re.search(rf": broken by \S+@\S+ pid \d+: {second}; reason: it hangs\n$", broken.stderr)
    assert ids(cli) == [first]
    again = cli.run("break", "a", "--holder", second, "--yes", "--json")
    assert (again.returncode, f"nobody holds it with holder {second}. Nothing" in again.stderr) == (1, True)
    assert json.loads(again.stdout)["broken"] is None
    shown = cli.run("show", "a").stdout
    assert f": {second}; reason: it hangs\n" in shown
    assert not TOKENS.search(shown)
    assert cli.json("show", "a")[0]["last_break"]["token"] is None
    record = break_log.last(cli.client(), "a")
    assert record is not None
    assert (record.token, record.holder) == (0, second)


@pytest.mark.gate
def test_a_semaphore_that_does_not_record_its_holders(cli: Cli) -> None:
    hold = taken(cli.client().semaphore("a", 1))
    assert cli.run("show", "a").stdout.endswith(": no holder is recorded\n")
    done = cli.run("run", "a", "--of", "1", "-n", "--", "true")
    assert (done.returncode, "not free: no holder is recorded. Next: " in done.stderr) == (75, True)
    waited = cli.run("wait", "a")
    assert (waited.returncode, 'does not record who holds "a"' in waited.stderr) == (64, True)
    assert cli.run("break", "a").stderr.endswith(". Nothing was changed. No holder is recorded.\n")
    watching = cli.start("watch", "a")
    assert watching.hear().endswith("  no holder is recorded; 0 waiting")
    hold.release()


@pytest.mark.gate
def test_names_have_no_namespace_by_default(cli: Cli) -> None:
    taken(cli.client().lock("a"))
    taken(cli.client(namespace="dibs").lock("b"))
    held = {True: "1 holding", False: ": free"}
    for name, more, is_held in (("a", [], True), ("b", [], False), ("a", ["--namespace", "dibs"], False)):
        assert held[is_held] in cli.run("show", name, *more).stdout, (name, more)
    done = cli.run("break", "b", "--namespace", "dibs")
    assert done.stderr.endswith(" --namespace dibs\n"), "the default is another namespace"
    assert "--namespace" not in cli.run("break", "a").stderr
    for client, name, end in ((cli.client(), "a", ""), (cli.client(namespace="dibs"), "b", " --namespace dibs")):
        with pytest.raises(dibs.AcquireTimeout) as raised, client.lock(name, timeout=0.01):
            pass
        assert raised.value.step == f"dibs show {name} --url '{cli.url}'{end}"


@pytest.mark.gate
def test_doctor_tells_what_the_layout_does_not_promise(cli: Cli) -> None:
    _, *found = cli.json("doctor")
    what = {level: " | ".join(one["what"] for one in found if one["level"] == level) for level in ("promise", "note")}
    assert "a test message arrived" in what["promise"]
    assert "at most one valid holder" in what["promise"]
    assert "first come" not in what["promise"]
    assert "tokens" not in what["promise"]
    assert "only locks with fenced=True have a fencing token" in what["note"]
    assert "permits of a semaphore have no lease" in what["note"]
    assert "minimal rights" not in what["note"]
    assert not [one for one in found if "message" in one["what"] and one["level"] == "danger"]
    client = cli.client(wake="spin")
    assert [one for one in client.doctor() if "no messages" in one.what]


@pytest.mark.gate
def test_the_demo_needs_tokens(cli: Cli) -> None:
    done = cli.run("demo", "--url", cli.url, "--plain")
    assert (done.returncode, "the demo needs locks with tokens" in done.stderr) == (64, True)
