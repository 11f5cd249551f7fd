"""Take the pictures of the dashboard, light and dark: `scripts/record dashboard`.

Real clients fight for the locks of a Redis server, `dibs dashboard` serves it, and Chromium shows the page.
The clients have invented hosts and process numbers: a picture in the documents shows nothing of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from playwright.sync_api import Browser, sync_playwright

import dibs

STATIC = Path(__file__).parent / "_static"
SIZE = {"width": 1200, "height": 1120}
PORT = 6390
"""Of the Redis server: it is in the picture."""
LARGEST = 200_000
"""Bytes of a picture."""
SECONDS = 75.0
"""How long the clients fight before the pictures are taken: long enough for a history."""
LEASE = 20.0
CALM = [
    ("import:customers", "etl", "batch-2", 2104, {"command": "import.py customers"}),
    ("import:orders", "etl", "batch-1", 1733, {"command": "import.py orders"}),
    ("leader:scheduler", "cron", "web-1", 812, {}),
    ("deploy:web", "ana", "ci-7", 4121, {"command": "deploy.sh", "run": "8812"}),
    ("migrate:accounts", "dba", "db-1", 977, {"command": "migrate 0042"}),
    ("tenant:acme", "worker", "web-2", 3310, {}),
    ("tenant:globex", "worker", "web-4", 3102, {}),
]
"""Locks that nobody else wants: name, owner, host, process, info."""
BUSY = [
    ("invoice:4711", 6.0, ["billing@web-1 411", "billing@web-2 386", "billing@web-3 1204", "refund@web-4 98"]),
    ("report:monthly", 14.0, ["reports@batch-1 5120", "reports@batch-2 4977", "bo@laptop-9 31337"]),
    ("stock:warehouse-7", 2.5, ["shop@web-1 640", "shop@web-2 655", "shop@web-3 612"]),
]
"""Locks for which several take turns: name, seconds of a turn, and who."""


class Scene:
    """Clients in threads, until `over`."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url, self._stack = url, stack
        self.over = threading.Event()

    def client(self, owner: str, host: str, pid: int) -> dibs.Client:
        told = os.uname_result(("Linux", host, "", "", ""))
        with patch.object(os, "uname", lambda: told), patch.object(os, "getpid", lambda: pid):
            return self._stack.enter_context(dibs.connect(self._url, owner=owner, lease=LEASE))

    def hold(self, lock: AbstractContextManager[object], *then: AbstractContextManager[object]) -> None:
        """Hold a lock; where `then` are given, wait for them in vain."""

        def run() -> None:
            with suppress(dibs.DibsError), ExitStack() as held:
                held.enter_context(lock)
                for one in then:
                    self.over.wait(3)
                    held.enter_context(one)
                self.over.wait()

        self._start(run)

    def take_turns(self, lock: dibs.Lock, seconds: float) -> None:
        def run() -> None:
            while not self.over.is_set():
                with suppress(dibs.DibsError), lock:
                    self.over.wait(seconds)

        self._start(run)

    def _start(self, run: Callable[[], None]) -> None:
        threading.Thread(target=run, name="MainThread", daemon=True).start()

    def play(self) -> None:
        for name, owner, host, pid, info in CALM:
            self.hold(self.client(owner, host, pid).lock(name, info=info))
        for name, seconds, people in BUSY:
            for one in people:
                owner, host, pid = one.replace("@", " ").split()
                self.take_turns(self.client(owner, host, int(pid)).lock(name), seconds)
        for pid in (7001, 7002, 7003, 7004):
            self.hold(self.client("sync", "web-4", pid).semaphore("api:payments", 5))
        ana, bo = self.client("ana", "web-3", 4188), self.client("bo", "web-4", 77)
        self.hold(ana.lock("billing"), ana.lock("ledger"))
        self.hold(bo.lock("ledger"), bo.lock("billing"))


@contextmanager
def redis_in(directory: str) -> Iterator[str]:
    words = ["redis-server", "--port", str(PORT), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        assert server.stdout is not None
        try:
            if not any("Ready to accept" in line for line in server.stdout):
                raise SystemExit(f"redis-server does not start on port {PORT}")
            yield f"redis://localhost:{PORT}"
        finally:
            server.terminate()


@contextmanager
def dashboard(url: str) -> Iterator[str]:
    """The address at which it is served."""
    words = [sys.executable, "-m", "dibs", "dashboard", "--url", url, "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as served:  # noqa: S603
        assert served.stdout is not None
        try:
            yield served.stdout.readline().strip()
        finally:
            served.terminate()


def take(browser: Browser, address: str, scheme: str, names: Sequence[tuple[str, str]]) -> None:
    page = browser.new_context(viewport=SIZE, color_scheme=scheme, timezone_id="UTC").new_page()  # type: ignore[arg-type]
    page.goto(address)
    page.get_by_role("row").nth(3).wait_for()
    for name, picture in names:
        if name:
            page.get_by_role("link", name=name, exact=True).first.click()
            page.locator("#lanes li").first.wait_for()
        file = STATIC / f"{picture}-{scheme}.png"
        page.screenshot(path=file)
        size = file.stat().st_size
        print(f"{file.name}: {size / 1000:.0f} KB")  # noqa: T201
        if size > LARGEST:
            raise SystemExit(f"{file.name} has more than {LARGEST} bytes")


def main() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("the pictures need chromium")
    with TemporaryDirectory() as place, ExitStack() as stack:
        url = stack.enter_context(redis_in(place))
        scene = Scene(url, stack)
        scene.play()
        try:
            with dashboard(url) as address, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=program, args=["--disable-lcd-text"])
                watching = browser.new_page()
                watching.goto(address)
                watching.wait_for_timeout(SECONDS * 1000)
                for scheme in ("light", "dark"):
                    take(browser, address, scheme, [("", "dashboard"), ("invoice:4711", "dashboard-lock")])
                browser.close()
        finally:
            scene.over.set()


if __name__ == "__main__":
    main()
