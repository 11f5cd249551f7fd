"""`dibs dashboard` as a process, a buffering proxy before it, and the elements of its page."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

from playwright.sync_api import Locator, Page, expect

import dibs
from lab.servers import guard
from process.children import PATIENCE, Process

NONE = "\N{EN DASH}"


class Served(Process):
    def __init__(self, url: str, *options: str, port: int = 0) -> None:
        argv = [sys.executable, "-m", "dibs", "dashboard", f"--url={url}", f"--port={port}", *options]
        super().__init__(argv, guard.root(), dict(os.environ))
        self.address = self.next_line()
        self.port = int(self.address.rstrip("/").rpartition(":")[2])


@contextmanager
def served(url: str, *options: str, port: int = 0) -> Iterator[Served]:
    server = Served(url, *options, port=port)
    try:
        yield server
    finally:
        server.discard()


PREFIX = "/ops/locks/"


@contextmanager
def buffering_proxy(port: int) -> Iterator[str]:
    """Serve the dashboard below a path. A response is passed on when it is complete: a stream never is."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(PREFIX):
                self.send_error(404)
                return
            target = f"http://127.0.0.1:{port}/{self.path.removeprefix(PREFIX)}"
            if "api/stream" in target:
                over.wait(PATIENCE)
                return
            with urlopen(target, timeout=PATIENCE) as answer:
                body, kind = answer.read(), answer.headers["Content-Type"]
                policy = answer.headers["Content-Security-Policy"]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Security-Policy", policy)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    over = threading.Event()
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}{PREFIX}"
    finally:
        over.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join(PATIENCE)


class Screen:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.grid = page.get_by_role("grid", name="Locks")
        self.rows = page.locator("#grid .rows .row")
        self.state = page.locator("#state")
        self.filter = page.get_by_label("Filter by a part of the name")
        self.holders = page.locator("#holders > li")
        self.queue = page.locator("#queue > li")
        self.history = page.locator("#history > li")
        self.dialog = page.get_by_role("dialog")

    def row(self, name: str) -> Locator:
        return self.rows.filter(has=self.page.get_by_role("link", name=name, exact=True))

    def card(self, title: str) -> Locator:
        return self.page.locator("#cards .card").filter(has_text=title).locator("dd")

    def open(self, name: str) -> None:
        self.row(name).get_by_role("link").click()
        expect(self.page.locator("#lock-name")).to_have_text(name)

    def table(self) -> dict[str, tuple[str, str, str]]:
        """For each row in the document: holder, token and waiters."""
        read = """rows => rows.map((row) => [".lock-name", ".holder", ".token", ".waiters"].map(
            (cell) => row.querySelector(cell).textContent))"""
        return {name: (holder, token, waiters) for name, holder, token, waiters in self.rows.evaluate_all(read)}


def truth(client: dibs.Client) -> dict[str, tuple[str, str, int]]:
    found = {}
    for info in client.locks():
        first = info.holders[0] if info.holders else None
        holder = "nobody" if first is None else first.label
        found[info.name] = (holder, NONE if first is None else str(first.token), len(info.waiters))
    return found


def shown(screen: Screen) -> dict[str, tuple[str, str, int]]:
    return {
        name: (holder, token, int(waiters.split(" ")[0].replace(NONE, "0")))
        for name, (holder, token, waiters) in screen.table().items()
    }


def is_equal(screen: Screen, client: dibs.Client) -> bool:
    """Does the table show the state of the store? It shortens tokens and adds the command."""
    there, seen = truth(client), shown(screen)
    return there.keys() == seen.keys() and all(
        seen[name][0].startswith(holder) and token.endswith(seen[name][1].lstrip("…")) and seen[name][2] == waiters
        for name, (holder, token, waiters) in there.items()
    )
