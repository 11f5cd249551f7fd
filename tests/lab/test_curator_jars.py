"""Where Curator comes from: a Maven repository that is believed only by digest, else Debian; compiled once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lab import curator_jars
from lab.servers import programs


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one."""
    programs.require("zookeeper", "curator")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dibs-lab"


class Repository:
    """A Maven repository that has one answer to every question."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.content = b"not what was asked for"
        asked, repository = self.asked, self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(repository.content)

            def log_message(self, *words: object) -> None:
                """Nowhere."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/maven/"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    repository = Repository()
    monkeypatch.setenv("DIBS_MAVEN", repository.url)
    try:
        yield repository
    finally:
        repository.close()


def kept(cache: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in cache.iterdir())


def test_other_bytes_are_thrown_away(cache: Path, repository: Repository) -> None:
    cache.mkdir()
    assert curator_jars._from_maven(cache) is None
    assert repository.asked[0] == "/maven/org/apache/curator/curator-recipes/5.9.0/curator-recipes-5.9.0.jar"
    assert kept(cache) == []


def test_the_right_bytes_are_kept_and_asked_for_once(
    cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(repository.content).hexdigest()
    monkeypatch.setattr(curator_jars, "DIGESTS", {"org/some/thing/1.0": digest})
    cache.mkdir()
    for _ in range(2):
        jars = curator_jars._from_maven(cache)
        assert jars is not None
        assert jars.paths == (cache / "thing-1.0.jar",)
    assert (cache / "thing-1.0.jar").read_bytes() == repository.content
    assert repository.asked == ["/maven/org/some/thing/1.0/thing-1.0.jar"]


def test_where_nobody_answers_debian_s_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_MAVEN", "http://127.0.0.1:1/")
    monkeypatch.setattr(curator_jars, "_classes", lambda cache, class_path: cache)
    assert curator_jars.compiled.__wrapped__().version.startswith("5.4")
