"""docs/recipes/api-limit.md: five calls at once, from all processes together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import dibs
from process.children import until
from recipes.programs import Stage

LIMIT = 5
NAME = "partner-api"


class Partner:
    """A real HTTP server that keeps every caller until it is told how many to answer, and counts those inside."""

    def __init__(self) -> None:
        self.inside = self.most = self.answered = 0
        self._counts = threading.Lock()
        self._answers = threading.Semaphore(0)
        self.answer = self._answers.release
        partner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                partner.attend()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: a killed caller is no news here."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()

    def attend(self) -> None:
        with self._counts:
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self._answers.acquire(timeout=120)
        with self._counts:
            self.inside -= 1
            self.answered += 1

    def url(self, path: object) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{path}"

    def close(self) -> None:
        self.answer(1_000)
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def partner() -> Iterator[Partner]:
    made = Partner()
    yield made
    made.close()


def test_no_more_than_five_calls_at_once(stage: Stage, partner: Partner) -> None:
    callers = [stage.start("api_limit.py", *(partner.url(f"{n}/{m}") for m in range(4))) for n in range(3)]
    until(lambda: partner.inside == LIMIT, what="five calls under way")
    stage.waiting(NAME, 12 - LIMIT)
    for left in range(11, -1, -1):
        partner.answer(1)
        until(lambda left=left: partner.answered == 12 - left, what="an answer")
        until(lambda left=left: partner.inside == min(left, LIMIT), what="the next call")
    assert [caller.end() for caller in callers] == [0] * 3
    assert partner.most == LIMIT
    assert sum(caller.text.count("200 http") for caller in callers) == 12


@pytest.mark.gate
def test_the_permits_of_a_killed_process_come_back(stage: Stage, partner: Partner) -> None:
    first = stage.start("api_limit.py", *(partner.url(n) for n in range(LIMIT)))
    until(lambda: partner.inside == LIMIT, what="five calls under way")
    with pytest.raises(dibs.Mismatch), stage.client.semaphore(NAME, LIMIT + 1, timeout=0):
        pytest.fail("another limit is refused while calls are under way")
    second = stage.start("api_limit.py", partner.url("second"))
    stage.waiting(NAME, 1)
    first.kill()
    until(lambda: stage.holders(NAME) == [second.pid], 25, what="a permit for the second, before any lease ended")
    partner.answer(LIMIT + 1)
    assert second.end() == 0, second.text
    partner.close()
    failing = stage.start("api_limit.py", partner.url("nobody-there"))
    assert failing.end() == 1
    assert "failed http" in failing.text
    assert not stage.holders(NAME), "a call that fails gives its permit back"
