"""The dashboard's server: views, streams, and life inside other servers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import dibs
import dibs.aio
import dibs.dashboard
from dibs.cli.main import main
from dibs.dashboard import streams
from dibs.dashboard.views import key_of
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from observability.dashboards import LIMIT, Proxy, Site, served
from process.children import until

pytestmark = pytest.mark.slow


def test_a_view_shows_holders_and_waiters(site: Site, client: dibs.Client) -> None:
    stores = site.ask("api/stores").json
    assert stores["allow_break"] is True
    assert [(one["id"], one["backend"]) for one in stores["stores"]] == [("0", "sqlite")]
    with client.lock("invoice:1", info={"command": "pay.sh"}) as hold, client.semaphore("pool", 3):
        waiter = threading.Thread(target=lambda: client.lock("invoice:1", owner="bo", timeout=LIMIT).acquire())
        waiter.start()
        until(lambda: client.inspect("invoice:1").waiters)
        until(lambda: site.ask("api/view").json["cards"]["waiting"])
        view = site.ask("api/view").json
        page = site.ask(f"api/lock?key={key_of('invoice:1')}").json
        hold.release()
        waiter.join()
    assert [row["name"] for row in view["rows"]] == ["invoice:1", "pool"]
    first, second = view["rows"]
    assert first["holder"].startswith("ana@")
    assert first["holder"].endswith("(pay.sh)")
    assert (first["token"], first["waiters"], first["mode"], first["trouble"]) == (hold.token, 1, "exclusive", None)
    assert (second["kind"], second["mode"], second["used"], second["capacity"]) == ("semaphore", "shared", 1, 3)
    assert (view["cards"]["held"], view["cards"]["up"], view["total"], view["complete"]) == (2, True, 2, True)
    assert view["prefixes"] == [{"prefix": "invoice:", "held": 1, "waiting": 1}]
    assert page["name"] == "invoice:1"
    assert page["queue"][0]["owner"] == "bo"
    assert page["holders"][0]["info"] == [["command", "pay.sh"]]
    assert page["command"].startswith("dibs show invoice:1 --url sqlite:")
    assert page["break_command"].startswith(f"dibs break --token {hold.token} invoice:1 --url sqlite:")
    assert {span["kind"] for lane in page["lanes"] for span in lane["spans"]} == {"held", "waited"}


def test_rows_are_sorted_filtered_and_paged(site: Site, client: dibs.Client) -> None:
    for name in ("b:1", "a:2", "a:1", "other"):
        client.lock(name).acquire()

    def names(query: str) -> list[str]:
        return [row["name"] for row in site.ask(f"api/view?{query}").json["rows"]]

    until(lambda: names("") == ["a:1", "a:2", "b:1", "other"])
    assert names("sort=age") == ["b:1", "a:2", "a:1", "other"]
    assert names("prefix=a:") == ["a:1", "a:2"]
    assert names("find=1") == ["a:1", "b:1"]
    assert names("find=ANA&limit=1&offset=2") == ["b:1"]
    assert names(f"find=pid+{os.getpid()}&prefix=b") == ["b:1"]
    assert names("find=pid") == []  # the word alone is in what is shown of every holder
    assert site.ask("api/view?find=1&limit=1").json["total"] == 2


def what(change: dict[str, Any]) -> str:
    return str(change["what"])


def test_a_stream_sends_changes_and_resumes(site: Site, client: dibs.Client) -> None:
    with site.stream(f"key={key_of('a')}") as events:
        assert next(events)[0] == ""
        first = next(event for event in events if event[0] == "view")
        assert first[2]["rows"] == []
        assert next(events)[0] == "lock"
        with client.lock("a") as hold:
            shown = next(event for event in events if event[0] == "view" and event[2]["rows"])
            assert shown[1] != first[1]
            assert shown[2]["rows"][0]["token"] == hold.token
        next(event for event in events if event[0] == "lock" and "released" in map(what, event[2]["history"]))
        last = next(event for event in events if event[0] == "as_of")
    with site.stream(Last_Event_ID=last[1]) as events:
        found = [next(events) for _ in range(3)]
        assert [event[0] for event in found] == ["", "as_of", "as_of"]
        assert set(found[1][2]) == {"as_of", "scanned_at", "cards"}


def test_a_quiet_stream_beats(client: dibs.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sampled in time while a request of the store is under way."""
    monkeypatch.setattr(streams, "HEARTBEAT", 0.2)
    monkeypatch.setattr("dibs.dashboard.asgi._FIRST_SAMPLE", 0.1)
    began, proceed = threading.Event(), threading.Event()

    def slow(prefix: str = "") -> Iterator[dibs.LockInfo]:
        began.set()
        proceed.wait(LIMIT)
        return client.locks(prefix)

    dashboard = dibs.dashboard.app(client)
    dashboard._stores["0"].sampler.client = Proxy(client, locks=slow)
    with served(dashboard) as site, site.stream() as events:
        assert began.wait(LIMIT)
        assert next(event for event in events if event[2] == "heartbeat")
        for path in ("api/view", f"api/lock?key={key_of('a')}"):  # an empty answer would say that nothing is held
            answer = site.ask(path)
            assert (answer.status, "has not answered yet" in answer.json["error"]) == (503, True)
        proceed.set()
        assert next(event for event in events if event[0] == "view")


@pytest.mark.gate
def test_two_streams_share_one_scan_and_nobody_scans_without_viewers(client: dibs.Client) -> None:
    scans: list[int] = []
    others = threading.enumerate()  # of tests before, whose last request may still be under way

    def counting(prefix: str = "") -> Iterator[dibs.LockInfo]:
        scans.append(1)
        return client.locks(prefix)

    dashboard = dibs.dashboard.app(client)
    sampler = dashboard._stores["0"].sampler
    sampler.client = Proxy(client, locks=counting)
    with served(dashboard) as site:
        assert not sampler.running
        assert not scans
        with site.stream() as one, site.stream("sort=name") as two:
            assert next(event for event in one if event[0] == "view")
            assert next(event for event in two if event[0] == "view")
            before = sampler.sample
            until(lambda: sampler.sample >= before + 2)
            assert len(scans) <= sampler.sample + 1
            assert [one.name for one in threading.enumerate() if one not in others].count("dibs-sampler") == 1
        until(lambda: not sampler.running)
        seen = len(scans)
        assert site.ask("api/stores").status == 200
        assert len(scans) == seen


def test_streams_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.dashboard.asgi.MOST_STREAMS", 1)
    with site.stream() as events:
        next(events)
        answer = site.ask("api/stream")
        assert (answer.status, "1 streams already" in answer.json["error"]) == (503, True)


@pytest.mark.gate
def test_a_store_that_is_down_keeps_its_rows_and_recovers(tmp_path: Path) -> None:
    with (
        Server(Redis()) as server,
        dibs.connect(server.url(), retry=1.0) as client,
        served(dibs.dashboard.app(client)) as site,
    ):
        client.lock("a", lease=600).acquire(timeout=LIMIT)
        with site.stream() as events:
            next(event for event in events if event[0] == "view" and event[2]["rows"])
            server.stop()
            down = next(event for event in events if event[0] == "view" and event[2]["error"])
            assert down[2]["cards"]["up"] is False
            assert [row["name"] for row in down[2]["rows"]] == ["a"]
            server.resume()
            back = next(event for event in events if event[0] == "view" and not event[2]["error"])
            assert back[2]["cards"]["up"] is True


def test_several_stores(tmp_path: Path) -> None:
    with (
        dibs.connect(f"sqlite:///{tmp_path}/one.db") as one,
        dibs.connect(f"sqlite:///{tmp_path}/two.db") as two,
        one.lock("a"),
        two.lock("b"),
        served(dibs.dashboard.app(one, two)) as site,
    ):
        assert [store["id"] for store in site.ask("api/stores").json["stores"]] == ["0", "1"]
        assert [site.ask(f"api/view?store={n}").json["rows"][0]["name"] for n in "01"] == ["a", "b"]


def test_clients_of_the_async_api_are_refused() -> None:
    async def make() -> None:
        async with dibs.aio.connect("memory://dashboard") as wrong:
            with pytest.raises(TypeError, match=r"clients of dibs\.connect\(\)"):
                dibs.dashboard.app(wrong)  # type: ignore[call-overload, arg-type, unused-ignore]

    asyncio.run(make())
    with pytest.raises(ValueError, match="at least one client"):
        dibs.dashboard.app()


@contextmanager
def command(tmp_path: Path, *words: str, program: tuple[str, ...] = ("-m", "dibs", "dashboard")) -> Iterator[Any]:
    """A `dibs dashboard` as a process, and the URL that it prints."""
    argv = [sys.executable, *program, "--port", "0", "--url", f"sqlite:///{tmp_path}/locks.db", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, urlsplit(process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.gate)])
def test_the_command_serves_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with command(tmp_path) as (process, url):
        site = Site(url.port)
        assert (url.scheme, url.netloc, url.path) == ("http", f"127.0.0.1:{url.port}", "/")
        assert site.ask("api/view").status == 200
        assert site.ask("api/view", Host="evil.example").status == 421
        with site.stream() as events:
            next(event for event in events if event[0] == "view")
            process.send_signal(number)
            assert not [event for event in events if event[0] == "lock"]  # the stream ends by itself
        assert process.wait(LIMIT) == 0, process.stderr.read()


@pytest.mark.parametrize(
    "words", [("--bind", "0.0.0.0"), pytest.param(("--host", "locks.example.com"), marks=pytest.mark.gate)]
)
def test_off_loopback_and_behind_a_proxy_a_token_is_required(tmp_path: Path, words: tuple[str, str]) -> None:
    with command(tmp_path, *words) as (_, url):
        site, token = Site(url.port), url.query.removeprefix("token=")
        assert len(token) >= 32
        assert site.ask("").status == 401
        assert site.ask("", Host="locks.example.com").status == 401
        assert site.ask("api/view", Authorization=f"Bearer {token}").status == 200


@pytest.mark.gate
def test_a_request_that_does_not_arrive_is_cut_off(tmp_path: Path) -> None:
    program = "import sys, dibs.cli.dashboard as d; d._REQUEST_TIMEOUT = 3; sys.exit(d.main(sys.argv[1:]))"
    with (
        command(tmp_path, program=("-c", program)) as (_, url),
        closing(socket.create_connection(("127.0.0.1", url.port), timeout=LIMIT)) as first,
        closing(socket.create_connection(("127.0.0.1", url.port), timeout=LIMIT)) as second,
        Site(url.port).stream() as events,
    ):
        first.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        second.sendall(b"GET /api/stores HTTP/1.1\r\nHost: localhost\r\n\r\nGET /")
        assert first.recv(1) == b""
        while second.recv(65536):
            pass
        for _ in range(5):  # one a second: an answer may take longer than a request
            next(event for event in events if event[0] == "as_of")


def test_wrong_options_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for words, text in (
            (["--token", "short"], "at least 16 ASCII characters"),
            (["--port", str(taken.getsockname()[1])], "cannot listen on 127.0.0.1 port"),
            (["--bind", "nonsense..name"], "cannot listen on nonsense..name"),
            (["--url", "memory://"], "memory:// is private to one process"),
        ):
            assert main(["dashboard", "--url", f"sqlite:///{tmp_path}/x.db", *words]) == 64
            assert text in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["dashboard", "--port", "x"])
    assert "is not a port" in capsys.readouterr().err


def test_a_missing_server_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["dashboard"]) == 64
    assert "pip install 'dibs[dashboard]'" in capsys.readouterr().err
