"""Pages in Debian's Chromium, driven by Playwright.

Each module starts a browser and ends it: while Playwright runs, its event loop counts as running in this thread, and a
test elsewhere could not start one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from browser.looks import Open
from cli.terminals import installed
from docs.building import built_site

PATIENCE = 60_000
DOCS = Path(__file__).parents[2] / "docs"
_RAW = re.compile(r"^```\{raw\} html\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Only files: no inline script, handler or style, no eval, no other host.
_BARE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Simulation</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src file:; style-src file:">
<meta name="color-scheme" content="light dark"><meta name="viewport" content="width=device-width"></head>
<body>
{}
</body></html>
"""


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The HTML of docs/simulation.md alone, under a strict Content-Security-Policy."""
    place = tmp_path_factory.mktemp("bare")
    shutil.copytree(DOCS / "_static", place / "_static")
    parts = _RAW.findall((DOCS / "simulation.md").read_text(encoding="utf-8"))
    page = place / "simulation.html"
    page.write_text(_BARE.format("\n".join(parts)), encoding="utf-8")
    return page


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = installed("chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open a file or an address in a window of its own. The test fails if the page complains on the console, opens a
    dialog or sends a request to another server."""
    contexts, complaints = [], []

    def opened(
        target: Path | str, *, route: str = "", width: int = 1280, ignore: str = "$^",
        before: Callable[[Page], object] | None = None, **media: Any,
    ) -> Page:  # fmt: skip
        context = browser.new_context(viewport={"width": width, "height": 900}, **media)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        home, address = ("file:", target.as_uri()) if isinstance(target, Path) else (target.partition("#")[0], target)

        def complain(text: str) -> None:
            if not re.search(ignore, text):
                complaints.append(text)

        def dismiss(dialog: Any) -> None:
            complain(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("console", lambda message: complain(message.text) if message.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: complain(str(error)))
        page.on("dialog", dismiss)
        page.on("request", lambda sent: None if sent.url.startswith(home) else complain(f"elsewhere: {sent.url}"))
        if before is not None:
            before(page)
        page.goto(address + route)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
