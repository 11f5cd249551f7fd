"""Every page of the site in a browser, light and dark, narrow and wide."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.looks import Open, faint_texts, is_too_wide

pytestmark = [pytest.mark.slow, pytest.mark.early, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.soak)])
def test_every_page_can_be_read(site: Path, open_page: Open, every: int) -> None:
    """A sample of the pages in every run, all of them in the soak. Their scripts change no colour and no width; without
    them a page loads in half the time. The site's frame is the same on all pages, and is looked at on the first."""
    files = sorted(file for file in site.rglob("*.html") if "_static" not in file.parts)[::every]
    wrong = []
    page = open_page(files[0], java_script_enabled=False)
    for file in files:
        page.goto(file.as_uri(), wait_until="load")
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 900})
            if is_too_wide(page):
                wrong.append(f"{file.name} is wider than {width} px")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            faint = faint_texts(page, "body" if file == files[0] else "article")
            wrong += [f"{file.name}, {scheme}: {pair}: {text}" for pair, text in faint.items()]
    assert wrong == []
