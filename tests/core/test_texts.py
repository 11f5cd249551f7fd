"""Names, errors, what others are shown: the words that dibs speaks and reads."""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

import ast
import copy
import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dibs
from dibs import backends, errors
from dibs._shared import NAMESPACE, show_step
from dibs.core import names
from dibs.info import LockInfo, Participant, busy_text, duration, printable, read_description, write_description
from dibs.testing.kit import KitClient
from testing.aside import Aside, until

SOURCE = Path(dibs.__file__).parent
NOW = datetime(2030, 1, 1, tzinfo=UTC)
ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, dibs.DibsError)]


@given(st.text(min_size=1, max_size=600))
def test_a_name_is_itself_or_refused(name: str) -> None:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b""
    try:
        assert names.check(name) == name
    except dibs.BadName as error:
        assert isinstance(error, ValueError)
        assert str(error).isprintable()
    else:
        assert 1 <= len(encoded) <= 512
        assert name.strip()


SIGNS = st.text(":/%235AFab", max_size=8)
"""Texts of the characters that escapes consist of."""
TEXTS = SIGNS | st.text(max_size=20)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_namespace_and_name_are_encoded_injectively(space: str, name: str, other: str, named: str) -> None:
    if (space, name) != (other, named) and space and other:
        assert names.prefix_of(space) + name != names.prefix_of(other) + named


@given(SIGNS, SIGNS)
def test_a_name_in_the_store_begins_with_a_slash_only_in_the_empty_namespace(space: str, name: str) -> None:
    assert "/" not in names.prefix_of(space)
    assert (names.prefix_of(space) + name).startswith("/") == (not space and name.startswith("/"))


def test_errors_say_where_what_and_what_next_and_pickle() -> None:
    info = LockInfo(name="a", holders=(Participant(owner="ana", token=7),))
    for kind in ERRORS:
        error = kind("busy", name="a", store="memory://", info=info, step="wait")
        assert str(error) == '"a" on memory://: busy. Next: wait'
        assert str(kind("busy", store="memory://")) == "memory://: busy"
        assert str(kind("busy")) == "busy"
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is kind
            assert (again.name, again.store, again.info, str(again)) == ("a", "memory://", info, str(error))
    for what in ("busy", "busy.", "is it there?", "stop!"):
        text = str(dibs.Busy(what, name="a", store="memory://", step="wait"))
        assert text == f'"a" on memory://: {what}{"" if what[-1] in ".?!" else "."} Next: wait'


def _literal(node: ast.expr) -> str:
    """A text as it is written, with {} for what is filled in; empty if it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.IfExp):
        return _literal(node.body) or _literal(node.orelse)
    return ""


def messages() -> Iterator[tuple[str, str]]:
    """Every text that dibs writes, and its place."""
    kinds = {kind.__name__ for kind in ERRORS} | {"Finding", "Loss", "Unsent", "Replaced"}
    for path in sorted(SOURCE.rglob("*.py")):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            place = f"{path.relative_to(SOURCE)}:{node.lineno}"
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in kinds or name in ("error", "warning", "info", "exception"):
                yield from ((place, text) for part in node.args if (text := _literal(part)))
            steps = [part.value for part in node.keywords if part.arg == "step"]
            yield from ((place, text) for part in steps if (text := _literal(part)))


DIALECT = re.compile(
    r"\b(whoever|time-outs?|not to be had|so many|faces?|keepers?|cures?|outsiders?|ownerless|mend|made anew|"
    r"in line|its line|nor is|laid|take it up|hung up)\b"
)


def test_every_text_is_plain_and_ends_once() -> None:
    found = list(messages())
    assert len(found) > 400, "or this says nothing"
    odd = [
        (place, written)
        for place, written in found
        if ((text := written.replace("...", "~")) and DIALECT.search(text))
        or re.search(r"[.,;:?!] *$", text)
        or re.search(r"[^.]\.\.[^.]|[?!:;,][.,:;?!]|\.[:;,?!]| [.,;:?!]( |$)", text)
        or text != text.strip()
    ]
    assert odd == []


SECRETLY = "dibs show a --url-file FILE (put the URL with its password into FILE)"
STEPS: list[tuple[object, dict[str, object], str, str | None]] = [
    ("redis://cache:6379", {}, NAMESPACE, "dibs show a --url redis://cache:6379"),
    ("redis://cache", {}, "dibs", "dibs show a --url redis://cache --namespace dibs"),
    ("redis://ana@cache", {}, "shop", "dibs show a --url redis://ana@cache --namespace shop"),
    ("redis://:sesame@cache", {}, NAMESPACE, SECRETLY),
    ("redis://cache", {"password": "sesame"}, NAMESPACE, SECRETLY),
    ("postgresql://db/app", {"mode": "session"}, NAMESPACE, "dibs show a --url 'postgresql://db/app?mode=session'"),
    ("redis://cache?layout=x", {"replicas": 1}, NAMESPACE, "dibs show a --url 'redis://cache?layout=x&replicas=1'"),
    ("zookeepers://h", {"ssl_context": object()}, NAMESPACE, "look at client.inspect('a')"),
    (["redis://h1", "redis://h2"], {}, NAMESPACE, "look at client.inspect('a')"),
    (None, {}, NAMESPACE, "dibs show a"),
    ("memory://x", {}, NAMESPACE, None),
]


def test_the_next_step_of_a_busy_lock_is_for_its_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for given_url, options, namespace, step in STEPS:
        assert show_step(given_url, options, namespace, "a") == step
    for url in ("redis://:sesame@cache", "redis://cache"):
        monkeypatch.setenv("DIBS_URL", url)
        assert show_step(url, {}, "shop", "a") == "dibs show a --namespace shop"
        assert "--url" in (show_step(url, {"replicas": 1}, NAMESPACE, "a") or "")
    monkeypatch.setenv("DIBS_URL", "memory://x")
    assert show_step("memory://x", {}, NAMESPACE, "a") is None


def test_a_busy_semaphore_says_how_many_permits_are_free() -> None:
    with dibs.connect("memory://texts") as client, dibs.connect("memory://texts") as other:
        calls = other.semaphore("a", 5, timeout=0)
        with client.semaphore("a", 5).permits(4):
            with pytest.raises(dibs.AcquireTimeout, match=r"not free: 2 permits wanted, 1 of 5 free: held by "):
                calls.permits(2).__enter__()
            with other.semaphore("a", 5), pytest.raises(dibs.AcquireTimeout, match=r"free: 1 permit wanted, 0 of 5 "):
                calls.__enter__()
            with pytest.raises(dibs.AcquireTimeout, match=r"2 permits wanted, 1 of 5 free"):
                dibs.multi(calls, calls, timeout=0).__enter__()


def test_a_loss_is_told_once() -> None:

    def leave(error: Exception | None) -> None:
        client = dibs.connect("memory://texts")
        with client.lock("a") as hold:
            client.close()
            if error is not None:
                raise error
            hold.check()

    with pytest.raises(dibs.LockLost) as caught:
        leave(None)
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(KeyError) as other:
        leave(KeyError("b"))
    (note,) = other.value.__notes__
    assert note.startswith('and leaving the lock failed: "a" on memory://texts: lost (token ')


def test_a_busy_lock_says_how_to_look_at_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a b.db"
    with dibs.connect(url) as client, dibs.connect(url) as other, client.lock("a"):
        with pytest.raises(dibs.AcquireTimeout) as caught, other.lock("a", timeout=0):
            pass
        assert caught.value.step == f"dibs show a --url '{url}'"
        with pytest.raises(dibs.NotHeld) as missing:
            other.break_("a", token=1)
        assert missing.value.step == caught.value.step


def test_a_lock_that_waits_for_itself_suggests_the_rlock() -> None:
    with dibs.connect("memory://texts") as client, client.lock("a"):
        for again in (client.lock("a", timeout=0), client.lock("a", timeout=0.01)):
            with pytest.raises(dibs.AcquireTimeout, match=r"holds it already\. Next: use client\.rlock\(name\)"), again:
                pass
        with dibs.connect("memory://texts") as other:
            with pytest.raises(dibs.AcquireTimeout) as caught, other.lock("a", timeout=0):
                pass
            assert caught.value.step is None
        with pytest.raises(dibs.AcquireTimeout) as caught, client.lock("a", timeout=0, owner="bob"):
            pass
        assert "rlock" not in str(caught.value)


@pytest.mark.parametrize("owner", ["ana", "bob"])
def test_a_lock_that_waits_for_itself_for_long_is_logged(
    dibs_client: KitClient, caplog: pytest.LogCaptureFixture, owner: str
) -> None:
    with dibs_client.lock("a", owner="ana"):
        waiter = Aside(lambda: dibs_client.lock("a", owner=owner, timeout=60).acquire())
        until(lambda: dibs_client.inspect("a").waiters)
        dibs_client.clock.advance(61)
        assert waiter.result() is None
    said = ['"a" on memory://: waits for a hold of the same owner; client.rlock may be taken again']
    assert caplog.messages == (said if owner == "ana" else [])


def test_what_was_seen_is_an_immutable_value() -> None:
    info = LockInfo(name="a")
    assert info == LockInfo(name="a", capacity=1) != LockInfo(name="b")
    assert hash(info) == hash(LockInfo(name="a", kind="mutex"))
    assert repr(info) == "LockInfo(name='a', kind='mutex', capacity=1, holders=(), waiters=())"
    with pytest.raises(AttributeError, match="cannot be changed"):
        info.name = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot be changed"):
        del info.name
    for fields in ({}, {"kind": "mutex"}, {"name": "a", "token": 7}):
        with pytest.raises(TypeError, match="a LockInfo is made of name, kind, capacity, holders, waiters"):
            LockInfo(**fields)  # type: ignore[arg-type]


def test_errors_are_what_a_user_expects() -> None:
    for kind, *parents in (
        (dibs.AcquireTimeout, dibs.Busy, TimeoutError),
        (dibs.NotHeld, RuntimeError),
        (dibs.Deadlock, RuntimeError),
        (dibs.Closed, RuntimeError),
        (dibs.StoreUnavailable, dibs.StoreError, ConnectionError),
        (dibs.MissingDriver, ImportError),
        (dibs.BadName, ValueError),
    ):
        assert all(issubclass(kind, parent) for parent in (*parents, dibs.DibsError)), kind


def at(seconds: float, **more: object) -> Participant:
    return Participant(owner="ana", host="web-3", pid=4121, since=NOW - timedelta(seconds=seconds), **more)  # type: ignore[arg-type]


def never(host: str, pid: int) -> bool:
    return False


def test_the_text_of_who_is_in_the_way() -> None:
    one = LockInfo(name="a", holders=(at(192, token=1731),), waiters=(at(1, token=1732), at(1, token=1740)))
    assert busy_text(one, 1740, NOW, never) == "held by ana@web-3 pid 4121 for 3m12s (token 1731), 2 ahead of you"
    assert busy_text(LockInfo(name="a"), None, NOW, never) == "nobody holds it any more"
    three = LockInfo(name="a", capacity=3, holders=(at(5, token=1), at(5, token=2), at(5, token=3)))
    assert "(token 1) and 2 more, 3 ahead of you" in busy_text(three, None, NOW, never)
    assert "pid 4121 (this process) for 5 s" in busy_text(three, None, NOW, lambda host, pid: pid == 4121)


def test_durations() -> None:
    assert [duration(s) for s in (0, 0.25, 5, 59, 60, 192, 3600, 7260)] == [
        "0 s", "0.25 s", "5 s", "59 s", "1m0s", "3m12s", "1h0m", "2h1m",
    ]  # fmt: skip


@given(st.text())
def test_foreign_text_cannot_steer_a_terminal(text: str) -> None:
    assert printable(text).isprintable()


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=5), st.text(max_size=20))
def test_what_is_written_about_a_claim_is_read_back(info: dict[str, object], owner: str) -> None:
    said = read_description(write_description(owner, "host", 7, "main", info))
    assert said == {"owner": owner, "host": "host", "pid": 7, "thread": "main", "info": info}


@given(st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_what_foreigners_wrote_is_never_raised(text: str) -> None:
    Participant(**read_description(text)).label.encode("ascii", "replace")


NONSENSE = [
    "", "{", "[]", "null", '{"pid": "x"}', '{"info": 3}', '{"owner": {"a": 1}}', "x" * 20_000,
    "[" * 8000 + "]" * 8000, '{"info": ' + '{"a":' * 2000 + "1" + "}" * 2000 + "}", "9" * 5000,
    '{"owner": "\\ud800"}', '{"pid": true, "info": {"x": NaN, "y": -Infinity}}',
]  # fmt: skip


def test_nonsense_beside_a_claim_is_shown_as_unknown() -> None:
    for text in NONSENSE:
        person = Participant(**read_description(text))
        assert isinstance(person.owner, str), text[:80]
        assert type(person.pid) is int, text[:80]
        assert isinstance(person.info, dict), text[:80]
        json.dumps(person.info, allow_nan=False)
        person.label.encode()
    with pytest.raises(TypeError, match="that can be written as JSON"):
        write_description("ana", "host", 7, "main", {"x": float("nan")})


def test_a_label_is_safe_to_print_and_leaves_out_what_is_unknown() -> None:
    assert Participant(owner="\x1b[2J", host="a\nb").label == "\\x1b[2J@a\\nb"
    assert Participant(owner="127.0.0.1").label == "127.0.0.1"
    assert Participant(owner="ana", pid=7).label == "ana pid 7"
    assert Participant().label == "?"


def test_a_latch_that_is_left_closed_says_how_it_is_opened() -> None:
    with dibs.connect("memory://texts") as client:
        latch = client.latch("a")
        latch.arm(3)
        with pytest.raises(dibs.Conflict, match=r"3 to go.*latch\.count_down\(latch\.count\(\)\)"):
            latch.arm(3)
        latch.count_down(latch.count())
        latch.arm(3)


def test_lists_of_stores_in_messages_come_from_the_table() -> None:
    schemes = [f"{scheme}://" for scheme in sorted({*backends._STORES, "quorum+redis", "quorum+rediss"})]
    for url, kind, start in (
        ("etcd://localhost", dibs.Unsupported, "dibs does not support etcd. Next: use one of "),
        ("nothing://localhost", ValueError, "dibs has no store for nothing:// URLs; it has "),
    ):
        with pytest.raises(kind) as caught:
            dibs.connect(url)
        assert str(caught.value).startswith(start)
        listed = str(caught.value).removeprefix(start).split(", ")
        assert [scheme for scheme in schemes if scheme not in listed] == []
    for scheme in ("postgresql+asyncpg", "postgresql+psycopg", "mysql+pymysql", "sqlite+aiosqlite"):  # of SQLAlchemy
        with pytest.raises(ValueError, match=rf"for {re.escape(scheme)}:// URLs; write {scheme.partition('+')[0]}://$"):
            dibs.connect(f"{scheme}://ana:sesame@db/app")


def test_a_wrong_url_in_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "nothing://localhost")
    with pytest.raises(ValueError, match=r"no store for nothing://.*\(the URL is that of DIBS_URL\)"):
        dibs.connect()
    with pytest.raises(ValueError, match=r"no store for nothing://") as caught:
        dibs.connect("nothing://localhost")
    assert "DIBS_URL" not in str(caught.value)


def test_psycopg_without_libpq_is_not_installed_again() -> None:
    """Its package is there, and the part that speaks to the server is not."""
    code = "import dibs; dibs.connect('postgresql://db/app')"
    env = {**os.environ, "PSYCOPG_IMPL": "c"}  # the one that is compiled on the machine: nobody has it
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dibs.errors.MissingDriver: postgresql://db/app: psycopg is installed, but")
    assert last.endswith("Next: pip install 'psycopg[binary]', or install libpq (Debian: libpq5)")


def test_a_missing_driver_names_an_extra_that_exists() -> None:
    """Whatever is installed: the text is made of the table alone."""
    extras = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for scheme, target in backends._STORES.items():
        if target.startswith(("dibs.backends.memory", "dibs.backends.sqlite")):  # they need no driver
            continue
        step = backends._missing(scheme, None, target, ModuleNotFoundError("no driver")).step or ""
        found = re.fullmatch(r"pip install 'dibs\[(\w+)\]', or in a checkout of dibs: pip install '\.\[(\w+)\]'", step)
        assert found, step
        assert found[1] == found[2]
        assert found[1] in extras
