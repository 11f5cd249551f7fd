"""Attacks on the dashboard: other sites, other hosts, no token, planted texts, clients that do not read."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest

import dibs
import dibs.dashboard
from dibs.dashboard import streams
from dibs.dashboard.threads import Threads
from dibs.dashboard.views import key_of
from dibs.monitor import break_log
from observability.dashboards import LIMIT, Proxy, Site, served
from process.children import until

pytestmark = pytest.mark.slow

TOKEN = "a-secret-of-this-test"
ROUTES = ("", "static/nothing.js", "api/stores", "api/view", "api/lock?key=YQ", "api/stream", "api/break", "nothing")


def test_every_route_needs_the_token(client: dibs.Client) -> None:
    with served(dibs.dashboard.app(client, token=TOKEN, allow_break=True)) as site:
        for path in ROUTES:
            for method in ("GET", "HEAD", "POST", "OPTIONS"):
                assert site.ask(path, method).status == 401, (path, method)
        for headers in (
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": "Bearer \xe9"},
            {"Cookie": "dibs_00000000=x; broken=\x7f; ="},
        ):
            assert site.ask("api/view", **headers).status == 401, headers
        assert site.ask(f"api/view?token={TOKEN}").status == 401  # only the page takes it from the URL
        answer = site.ask(f"?token={TOKEN}&x=1")
        assert (answer.status, answer.headers["location"]) == (303, "./?x=1")
        cookie, *rest = answer.headers["set-cookie"].split("; ")
        assert set(rest) == {"HttpOnly", "SameSite=Lax"}  # without a path it is that of the request
        behind_tls = site.ask(f"?token={TOKEN}", X_Forwarded_Proto="https, http")
        assert behind_tls.headers["set-cookie"].endswith("; Secure")
        assert TOKEN not in cookie
        for cookies in (cookie, f'from_another_port={{"a": "b"}}; {cookie}; =', f"{cookie}x; {cookie}"):
            assert site.ask("api/view", Cookie=cookies).status == 200, cookies
        assert site.ask("api/view", Cookie=f"{cookie}x").status == 401
        assert site.ask("api/view", Authorization=f"Bearer {TOKEN}").status == 200


def test_every_answer_has_the_headers(site: Site) -> None:
    for path in ROUTES:
        headers = site.ask(path, "HEAD").headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';"), path
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_any_last_event_is_accepted(site: Site) -> None:
    for last in ("9" * 5000, "-1", "1.5", "\xb2", "x", ""):
        assert site.ask("api/stream", "HEAD", Last_Event_ID=last).status == 200, last[:9]


def test_another_site_opens_no_stream(site: Site) -> None:
    for path in ("api/stream", "api/view", "api/stores"):
        assert site.ask(path, Sec_Fetch_Site="cross-site").status == 403
        assert site.ask(path, "HEAD", Sec_Fetch_Site="same-origin").status == 200
    assert site.ask("", Sec_Fetch_Site="cross-site").status == 200  # a link from a chat leads to the page


def test_another_host_is_refused(site: Site) -> None:
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[::2]"):
        for path in ("", "api/view", "api/stores"):
            assert site.ask(path, Host=host).status == 421, host
    for good in ("localhost", "LOCALHOST:1234", "127.0.0.1:8765", "[::1]:8765"):
        assert site.ask("api/stores", Host=good).status == 200


def test_no_path_leads_out_of_the_page(site: Site) -> None:
    for path in (
        "/static/../asgi.py", "/static/..%2fasgi.py", "/static/%2e%2e/asgi.py", "//etc/passwd", "/static//etc/passwd",
        "/static/index.html/..", "/static/", "/static/\\..\\asgi.py", "/static/style.css%00.js",
    ):  # fmt: skip
        found = site.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert found.startswith(b"HTTP/1.1 404 "), path


def test_bad_parameters_get_a_sentence(site: Site) -> None:
    for path, status, text in (
        ("api/view?store=7", 404, "no such store"),
        ("api/view?sort=evil", 400, "sort must be one of pressure, waiters, age, name"),
        ("api/view?limit=0", 400, "limit must be a number from 1 to 200"),
        ("api/view?limit=%D9%A1", 400, "limit must be a number from 1 to 200"),
        ("api/view?limit=99999999999999999999", 400, "limit must be a number from 1 to 200"),
        ("api/view?offset=-1", 400, "offset must be a number"),
        ("api/view?find=%ff", 400, "the query is not valid"),
        ("api/view?find=" + "x" * 5000, 400, "more than 4096 characters"),
        ("api/view?" + "a=1&" * 30, 400, "the query is not valid"),
        ("api/lock", 400, "key is missing"),
        ("api/lock?key=%C3%A9", 400, "key is not that of a lock"),
        ("api/lock?key=_w", 400, "key is not that of a lock"),
        ("api/nothing", 404, "nothing here"),
    ):
        answer = site.ask(path)
        assert (answer.status, text in answer.json["error"]) == (status, True), answer.body


def test_only_get_and_head(site: Site) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert site.ask("api/view", method).status == 405
    assert site.ask("api/break").status == 405
    head = site.ask("api/view", "HEAD")
    assert (head.status, head.body) == (200, b"")


def good(site: Site, name: str, token: int, reason: str = "it hangs") -> tuple[dict[str, object], dict[str, str]]:
    csrf = site.ask("api/stores").json["csrf"]
    body: dict[str, object] = {"store": "0", "key": key_of(name), "token": token, "reason": reason}
    headers = {"Content-Type": "application/json", "X-Dibs-CSRF": csrf, "Origin": f"http://127.0.0.1:{site.port}"}
    return body, headers


def test_break_is_not_there_by_default(client: dibs.Client) -> None:
    with served(dibs.dashboard.app(client)) as site:
        stores = site.ask("api/stores").json
        assert (stores["allow_break"], "csrf" in stores) == (False, False)
        assert site.ask("api/break", "POST", b"{}").status == 404


def test_break_with_everything_right(site: Site, client: dibs.Client) -> None:
    hold = client.lock("a").acquire()
    body, headers = good(site, "a", hold.token)
    with site.stream(f"key={key_of('a')}") as events:
        next(event for event in events if event[0] == "lock")
        answer = site.ask("api/break", "POST", json.dumps(body).encode(), **headers)
        assert answer.status == 200, answer.body
        assert "it hangs" in answer.json["done"]
        assert "(dashboard, 127.0.0.1)" in answer.json["done"]
        page = next(event[2] for event in events if event[0] == "lock" and event[2]["broken"])
    assert not client.inspect("a").holders
    record = break_log.last(client, "a")
    assert (record.token, record.reason) == (hold.token, "it hangs")
    assert "it hangs" in page["broken"]
    assert "broken" in {one["what"] for one in page["history"]}


def test_a_break_from_elsewhere_is_refused(site: Site, client: dibs.Client) -> None:
    hold = client.lock("a").acquire()
    body, headers = good(site, "a", hold.token)
    sent = json.dumps(body).encode()
    for change in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"X-Dibs-CSRF": ""},
        {"X-Dibs-CSRF": "x" * 43},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ):
        answer = site.ask("api/break", "POST", sent, **{**headers, **change})
        assert answer.status == 403, change
    answer = site.ask("api/break", "POST", sent, **{**headers, "Origin": ""})
    assert (answer.status, "does not say which page" in answer.json["error"]) == (403, True)
    assert client.inspect("a").holders


def test_a_body_that_does_not_arrive_is_not_awaited_for_ever(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.dashboard.asgi._BODY_PATIENCE", 0.1)
    _, headers = good(site, "a", 1)
    lines = ["POST /api/break HTTP/1.1", f"Host: 127.0.0.1:{site.port}", "Connection: close", "Content-Length: 9"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    assert site.raw("\r\n".join([*lines, "", "{"]).encode()).startswith(b"HTTP/1.1 408 ")


def test_a_bad_or_stale_break_changes_nothing(site: Site, client: dibs.Client) -> None:
    hold = client.lock("a").acquire()
    body, headers = good(site, "a", hold.token)
    for change, status in (
        ({"token": hold.token + 1}, 409),
        ({"token": True}, 400),
        ({"token": "1"}, 400),
        ({"reason": "  "}, 400),
        ({"reason": 1}, 400),
        ({"reason": "x" * 501}, 400),
        ({"key": ""}, 400),
        ({"key": "_w"}, 400),
        ({"store": "9"}, 400),
        ({"extra": "x" * 20_000}, 413),
    ):
        answer = site.ask("api/break", "POST", json.dumps({**body, **change}).encode(), **headers)
        assert answer.status == status, (change, answer.body)
        assert answer.json["error"]
    for text in (b"[]", b"{", b"\xff", b"[" * 10_000, b"null"):
        assert site.ask("api/break", "POST", text, **headers).status == 400, text[:10]
    assert client.inspect("a").holders


@pytest.mark.gate
def test_breaks_that_wait_for_the_store_are_few(client: dibs.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.dashboard.asgi.MOST_BREAKS", 1)
    began, proceed = threading.Event(), threading.Event()

    def slow(name: str, *, token: int) -> None:
        began.set()
        proceed.wait(LIMIT)
        client.break_(name, token=token)

    dashboard = dibs.dashboard.app(client, allow_break=True)
    dashboard._stores["0"].client = Proxy(client, break_=slow)
    hold = client.lock("a").acquire()
    with served(dashboard) as site, ThreadPoolExecutor(1) as pool:
        body, headers = good(site, "a", hold.token)
        sent = json.dumps(body).encode()
        first = pool.submit(site.ask, "api/break", "POST", sent, **headers)
        try:
            assert began.wait(LIMIT)
            second = site.ask("api/break", "POST", sent, **headers)
            assert (second.status, "nothing was changed" in second.json["error"]) == (503, True)
        finally:
            proceed.set()
        assert first.result(LIMIT).status == 200
        assert site.ask("api/break", "POST", sent, **headers).status == 409


def test_work_counts_until_its_end_though_its_caller_is_cancelled() -> None:
    proceed, threads = threading.Event(), Threads("test", 1)

    async def scene() -> None:
        caller = asyncio.create_task(threads.run(proceed.wait, LIMIT))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert threads.under_way == 1
        proceed.set()
        assert await threads.run(proceed.is_set)  # by the same thread
        assert threads.under_way == 0

    try:
        asyncio.run(scene())
    finally:
        threads.close()


def test_the_page_asked_for_by_another_site_starts_no_sampling(client: dibs.Client) -> None:
    dashboard = dibs.dashboard.app(client)
    with served(dashboard) as site:
        assert site.ask("", Sec_Fetch_Site="cross-site").status == 200  # as the address of an image there
        assert not dashboard._stores["0"].sampler.running
        assert site.ask("").status == 200
        assert dashboard._stores["0"].sampler.running


def test_a_prefix_of_strangers_finds_its_names(site: Site, client: dibs.Client) -> None:
    name = "\u202eevil:1"
    client.lock(name).acquire()
    client.lock("other:1").acquire()
    until(lambda: site.ask("api/view").json["total"] == 2)
    prefixes = [one["prefix"] for one in site.ask("api/view").json["prefixes"]]
    assert prefixes == ["\\u202eevil:", "other:"]
    rows = site.ask(f"api/view?{urlencode({'prefix': prefixes[0]})}").json["rows"]
    assert [row["key"] for row in rows] == [key_of(name)]


def test_planted_texts_are_bounded_and_escaped(tmp_path: Path, site: Site, client: dibs.Client) -> None:
    nasty = "<script>alert(1)</script>\u202e\x1b[2J\u2066\x00javascript:alert(1)"
    many = {str(number): number for number in range(30)}

    def hold_and_wait() -> None:
        """It is in the graph."""
        with client.lock("prefix\u202e:1"):
            client.lock("rtl \u202e name", timeout=LIMIT).acquire()

    other = threading.Thread(target=hold_and_wait)
    with (
        client.lock("<img src=x onerror=alert(1)>", owner=nasty, info={nasty: nasty, "n": ["x" * 3000, nasty], **many}),
        client.lock("rtl \u202e name"),
    ):
        other.start()
        until(lambda: site.ask("api/view").json["graph"])
        key = key_of("<img src=x onerror=alert(1)>")
        for path in ("api/view", f"api/lock?key={key}"):
            answer = site.ask(path)
            assert answer.headers["content-type"] == "application/json"
            text = json.dumps(answer.json, ensure_ascii=False)
            assert not [sign for sign in "\u202e\x1b\u2066\x00" if sign in text]
            assert len(text) < 20_000
        page = site.ask(f"api/lock?key={key}").json
        assert all(len(value) <= 500 for _, value in page["holders"][0]["info"])
        assert len(page["holders"][0]["info"]) == 20
        assert len(page["holders"][0]["owner"]) <= 120
    other.join(LIMIT)


@pytest.mark.gate
def test_a_client_that_does_not_read_is_dropped(client: dibs.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PATIENCE", 0.3)
    monkeypatch.setattr(streams, "_PADDING", b":" + b" " * 20_000_000 + b"\n\n")
    dashboard = dibs.dashboard.app(client)
    with served(dashboard) as site, closing(socket.create_connection(("127.0.0.1", site.port))) as wire:
        wire.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.recv(1)
        until(lambda: not dashboard._watching)
        monkeypatch.setattr(streams, "_PADDING", b"")
        assert site.ask("api/view").status == 200


@pytest.mark.gate
def test_the_errors_of_a_store_have_no_password() -> None:
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://ana:sesame@127.0.0.1:{nobody.getsockname()[1]}"
        with dibs.connect(url, retry=0.1) as client, served(dibs.dashboard.app(client, allow_break=True)) as site:
            view = site.ask("api/view")
            assert view.json["error"]
            assert view.json["cards"]["up"] is False
            body, headers = good(site, "a", 1)
            broken = site.ask("api/break", "POST", json.dumps(body).encode(), **headers)
            assert broken.status == 503
            page = site.ask(f"api/lock?key={key_of('a')}")
            for answer in (view, broken, page, site.ask("api/stores")):
                assert b"sesame" not in answer.body
                assert b"Traceback" not in answer.body
