"""The documentation site, as `scripts/docs` builds it: warnings are errors, and only the extra `docs` is installed."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import dibs
import dibs.aio
from docs.building import built_site

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
SECTIONS = [
    "Tutorial", "Guides", "Stores", "Production", "Migrate from", "Reference", "Testing your code", "How it works",
    "FAQ", "Changelog",
]  # fmt: skip
SHARED = {"Finding", "LockInfo", "Participant"}
"""Names of both APIs that are one and the same class."""


def of_the_site(test: Callable[..., None]) -> Callable[..., None]:
    """The first time, the environment of scripts/docs is made."""
    return pytest.mark.slow(pytest.mark.timeout(600)(test))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec
    assert spec.loader
    module = sys.modules["site_hooks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@of_the_site
def test_every_page_is_in_the_site_and_in_its_sidebar(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    captions = re.findall(r'<p class="caption"[^>]*><span class="caption-text">(.*?)</span>', home)
    assert captions == SECTIONS
    pages = [page.relative_to(DOCS).with_suffix(".html").as_posix() for page in DOCS.rglob("*.md")]
    sidebar = home[home.index('class="sidebar-tree"') :].partition("</aside>")[0]
    assert [page for page in pages if page != "index.html" and f'href="{page}"' not in sidebar] == []


@of_the_site
@pytest.mark.parametrize(("module", "page"), [(dibs, "reference/api.html"), (dibs.aio, "reference/aio.html")])
def test_the_reference_shows_public_names_and_types_and_leads_to_the_options(
    site: Path, module: ModuleType, page: str
) -> None:
    said = (site / page).read_text(encoding="utf-8")
    names = set(module.__all__) - (SHARED if module is dibs.aio else set()) - {"LockOptions"}
    assert [name for name in sorted(names) if f'id="{module.__name__}.{name}"' not in said] == []
    shown = re.sub(r"\s+", " ", re.sub("<[^>]*>", "", said))
    assert "TypeAliasForwardRef" not in shown
    assert "timeout: float | timedelta | None = None" in shown
    assert "Target: a URL" in shown
    assert len(re.findall(rf'As in <a [^>]*href="#{module.__name__}.Client.lock"', said)) > 40


@of_the_site
def test_llms_txt_lists_every_page_and_its_links_lead_there(site: Path) -> None:
    """As llmstxt.org has it: a title, a summary, sections with lists of links."""
    title, _, summary, *lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert title == "# dibs"
    assert summary.startswith("> ")
    assert [line for line in lines if line and not re.match(r"## \w|- \[.+\]\(https://\S+\): \S", line)] == []
    links = re.findall(r"\]\((\S+?)\)", "\n".join(lines))
    pages = {link.removeprefix(URLS["Documentation"]) for link in links}
    assert len(pages) == len(links)
    assert pages == {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in DOCS.rglob("*.md")} - {
        "index.html"
    }
    assert [page for page in pages if not (site / page).is_file()] == []


@of_the_site
def test_links_out_of_the_documents_lead_to_files_of_the_repository(site: Path) -> None:
    source = re.escape(URLS["Source"])
    found = set()
    for page in site.rglob("*.html"):
        found |= set(re.findall(rf'href="{source}/(?:blob|tree)/main/([^"#?]+)"', page.read_text(encoding="utf-8")))
    assert "README.md" in found
    assert [path for path in found if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_a_broken_link_is_found(hooks: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text('<p id="here"><a href="sub/b.html#there">b</a> <a href="https://x.example/">x</a>')
    (tmp_path / "sub/b.html").write_text(
        '<p id="there"><a href="../a.html#here">a</a> <a href="#there">b</a> <a href="../a.html#gone">1</a> '
        '<a href="#gone">2</a> <a href="gone.html">3</a> <img src="../gone.png">'
    )
    assert hooks.broken_links(tmp_path) == [
        f"sub/b.html: {target}" for target in ("#gone", "../a.html#gone", "../gone.png", "gone.html")
    ]


@pytest.mark.slow
def test_the_contents_are_lists_of_pages(hooks: ModuleType) -> None:
    found = hooks.contents(
        "## not this\n<!-- contents -->\n\n## Guides\n\n- [A](a.md): about a.\n  - [B](x/b.md): about b.\n"
    )
    (page,) = found["Guides"]
    assert (page.title, page.name, page.line) == ("A", "a", "about a.")
    assert [below.name for below in page.below] == ["x/b"]
    with pytest.raises(ValueError, match="not a section"):
        hooks.contents("<!-- contents -->\n## Guides\n\nSome text.\n")
