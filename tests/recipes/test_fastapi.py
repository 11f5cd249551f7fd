"""docs/recipes/fastapi.md: two real uvicorn processes, requests from outside."""

from __future__ import annotations

import http.client
import json
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pytest

from process.children import until
from recipes.programs import EXAMPLES, Connect, Program, Stage

pytestmark = pytest.mark.gate

pytest.importorskip("fastapi", reason="pip install 'dibs[recipes]'")
pytest.importorskip("uvicorn", reason="pip install 'dibs[recipes]'")

LOCK = "invoice:42"
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
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("POST", path)
            reply = connection.getresponse()
            return Answer(reply.status, json.loads(reply.read()), reply.headers["Retry-After"])

    def posting(self, path: str) -> Future[Answer]:
        """The same, on a thread of its own."""
        return self.pool.submit(self.post, path)


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


def serve(pool: ThreadPoolExecutor, stage: Stage) -> Server:
    program = stage.start("-m", "uvicorn", "--port", 0, "fastapi_app:app", PYTHONPATH=str(EXAMPLES))
    return Server(program, int(program.hear(r"running on http://127.0.0.1:(\d+)")[1]), pool)


def in_flight(stage: Stage, db: sqlite3.Connection, server: Server, path: str) -> Future[Answer]:
    """A request that has the lock and waits for the database, until that is rolled back."""
    db.execute("UPDATE invoices SET settled = 0, fence = 0")
    db.execute("BEGIN IMMEDIATE")
    answer = server.posting(path)
    stage.taken(LOCK, server.program)
    # The store knows of a grant before the endpoint runs: only an open database shows that it does.
    until(lambda: server.program.has_open(stage.directory / "shop.db"), what="the endpoint at work")
    return answer


@pytest.mark.parametrize(("path", "other"), [(PLAIN, AIO), (AIO, PLAIN)])
def test_an_invoice_is_settled_once(
    pool: ThreadPoolExecutor, stage: Stage, db: sqlite3.Connection, path: str, other: str
) -> None:
    first, second = serve(pool, stage), serve(pool, stage)
    assert first.post(path) == Answer(200, {"outcome": "settled"}, None)
    assert not stage.holders(LOCK), "given back before the answer was sent"
    assert first.post(path) == Answer(200, {"outcome": "settled before"}, None)

    answer = in_flight(stage, db, first, path)
    assert second.post(other) == Answer(423, {"detail": "another request holds this invoice"}, "1")
    db.execute("ROLLBACK")
    assert answer.result(60).body == {"outcome": "settled"}
    assert second.post(other).body == {"outcome": "settled before"}

    answer = in_flight(stage, db, first, path)
    stage.client.break_(LOCK, token=stage.client.inspect(LOCK).holders[0].token)
    with stage.client.lock(LOCK, timeout=60) as hold:
        db.execute("UPDATE invoices SET fence = ?", (hold.token,))
        db.execute("COMMIT")
        assert answer.result(60).status == 409, "a stale request changes nothing"
    assert db.execute("SELECT settled FROM invoices").fetchone() == (0,)

    answer = in_flight(stage, db, first, path)
    stage.client.break_(LOCK, token=stage.client.inspect(LOCK).holders[0].token)
    db.execute("ROLLBACK")
    assert answer.result(60).status == 409, "nobody else has written: the change was made, but the lock was lost"

    answer = in_flight(stage, db, first, path)
    first.program.kill()
    assert isinstance(answer.exception(60), ConnectionError | http.client.HTTPException)
    stage.free(LOCK)
    db.execute("ROLLBACK")
    assert second.post(path).body == {"outcome": "settled"}
    second.program.signal(signal.SIGTERM)
    second.program.hear("Application shutdown complete")
    assert "Traceback" not in second.program.text
