"""docs/recipes/fastapi.md: two real uvicorn processes, requests from outside."""

from __future__ import annotations

import http.client
import json
import signal
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pytest

from process.children import until
from recipes.programs import EXAMPLES, Program, Stage

pytest.importorskip("fastapi", reason="pip install 'dibs[recipes]'")
pytest.importorskip("uvicorn", reason="pip install 'dibs[recipes]'")

LOCK = "invoice:42"
Connect = Callable[[], sqlite3.Connection]
PLAIN, AIO = "/invoices/42/settle", "/aio/invoices/42/settle"


@dataclass
class Answer:
    status: int
    body: dict[str, str]
    retry_after: str | None


@dataclass
class Server:
    program: Program
    port: int
    pool: ThreadPoolExecutor

    def post(self, path: str) -> Answer:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)) as connection:
            connection.request("POST", path)
            reply = connection.getresponse()
            return Answer(reply.status, json.loads(reply.read()), reply.headers["Retry-After"])

    def posting(self, path: str) -> Future[Answer]:
        """The same, on a thread of its own."""
        return self.pool.submit(self.post, path)


Start = Callable[[], Server]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as made:
        yield made


@pytest.fixture
def db(pool: ThreadPoolExecutor, stage: Stage, shop: Connect) -> sqlite3.Connection:
    """The servers are killed before the pool is waited for: what still asks them then ends."""
    db = shop()
    db.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, settled INTEGER DEFAULT 0, fence INTEGER DEFAULT 0)")
    db.execute("INSERT INTO invoices (id) VALUES (42)")
    return db


@pytest.fixture
def start(pool: ThreadPoolExecutor, stage: Stage, db: sqlite3.Connection) -> Callable[[], Server]:
    def start() -> Server:
        program = stage.start("-m", "uvicorn", "--port", 0, "fastapi_app:app", PYTHONPATH=str(EXAMPLES))
        return Server(program, int(program.hear(r"running on http://127.0.0.1:(\d+)")[1]), pool)

    return start


def in_flight(stage: Stage, db: sqlite3.Connection, server: Server, path: str) -> Future[Answer]:
    """A request that has the lock and waits for the database, until that is rolled back."""
    db.execute("BEGIN IMMEDIATE")
    answer = server.posting(path)
    stage.taken(LOCK, server.program)
    # The store knows of a grant before the endpoint runs: only an open database shows that it does.
    until(lambda: server.program.has_open(stage.directory / "shop.db"), what="the endpoint at work")
    return answer


@pytest.mark.parametrize("path", [PLAIN, AIO])
def test_an_invoice_is_settled_once(stage: Stage, start: Start, path: str) -> None:
    server = start()
    assert server.post(path) == Answer(200, {"outcome": "settled"}, None)
    assert server.post(path) == Answer(200, {"outcome": "settled before"}, None)
    assert not stage.holders(LOCK), "given back before the answer was sent"
    server.program.signal(signal.SIGTERM)
    server.program.hear("Application shutdown complete")
    assert "Traceback" not in server.program.text


@pytest.mark.parametrize(("one", "other"), [(PLAIN, AIO), (AIO, PLAIN)])
def test_whoever_comes_while_it_is_busy_is_asked_to_come_back(
    stage: Stage, db: sqlite3.Connection, start: Start, one: str, other: str
) -> None:
    first, second = start(), start()
    answer = in_flight(stage, db, first, one)
    assert second.post(other) == Answer(423, {"detail": "somebody else is at it"}, "1")
    db.execute("ROLLBACK")
    assert answer.result(20).body == {"outcome": "settled"}
    assert second.post(other).body == {"outcome": "settled before"}


@pytest.mark.slow
@pytest.mark.parametrize("path", [PLAIN, AIO])
def test_a_request_that_lost_its_lock_is_not_answered_as_if_it_had_not(
    stage: Stage, db: sqlite3.Connection, start: Start, path: str
) -> None:
    """Slow: the lease of 5 s has to run out. Nobody else has written, so the change may be made: look, says 409."""
    server = start()
    answer = in_flight(stage, db, server, path)
    stage.freeze(server.program)
    with stage.client.lock(LOCK, timeout=20):
        server.program.signal(signal.SIGCONT)
        db.execute("ROLLBACK")
        assert answer.result(20).status == 409


@pytest.mark.parametrize("path", [PLAIN, AIO])
def test_a_stale_request_changes_nothing(stage: Stage, db: sqlite3.Connection, start: Start, path: str) -> None:
    answer = in_flight(stage, db, start(), path)
    stage.client.break_(LOCK, token=stage.client.inspect(LOCK).holders[0].token)
    with stage.client.lock(LOCK, timeout=5) as hold:
        db.execute("UPDATE invoices SET fence = ?", (hold.token,))
        db.execute("COMMIT")
        assert answer.result(20).status == 409
    assert db.execute("SELECT settled FROM invoices").fetchone() == (0,)


@pytest.mark.parametrize("path", [PLAIN, AIO])
def test_a_killed_server_frees_what_its_requests_held(
    stage: Stage, db: sqlite3.Connection, start: Start, path: str
) -> None:
    first, second = start(), start()
    answer = in_flight(stage, db, first, path)
    first.program.kill()
    assert isinstance(answer.exception(20), ConnectionError | http.client.HTTPException)
    stage.free(LOCK, within=10)
    db.execute("ROLLBACK")
    assert second.post(path).body == {"outcome": "settled"}


def test_requests_that_change_threads_give_back_what_they_took(
    stage: Stage, db: sqlite3.Connection, start: Start
) -> None:
    """Twenty at once over the threads of the pool: each has its own invoice, three times."""
    server = start()
    db.executemany("INSERT INTO invoices (id) VALUES (?)", [(n,) for n in range(100, 120)])
    answers = [server.posting(f"/invoices/{n}/settle") for n in range(100, 120) for _ in range(3)]
    assert {answer.result(40).status for answer in answers} == {200}
    assert sorted(answer.result().body["outcome"] for answer in answers) == ["settled"] * 20 + ["settled before"] * 40
    assert list(stage.client.locks("invoice:")) == []
