"""The parts of the site that Sphinx does not bring.

- The lists below the mark in `index.md` are the table of contents. On GitHub they are read as they stand. On the site
  they become the sidebar (a section is a caption, an indented list belongs to the page above it), and `llms.txt`.
- A link to a file outside `docs` leads to the repository.
- After the build every internal link of every page is checked, with its anchor.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pygments.lexers.shell import BashLexer
from sphinx.application import Sphinx
from sphinx.util import logging

import dibs

CONTENTS = "<!-- contents -->"
_ITEM = re.compile(r"^( *)- \[(.+?)\]\((\S+?)\.md\)(?:: (.+))?$")
_UPWARDS = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(?<![`:])`([^`]+)`(?![`_])")
_log = logging.getLogger(__name__)


@dataclass
class Page:
    title: str
    name: str
    """Its path in docs, without .md."""
    line: str
    """Its summary, in one line."""
    below: list[Page] = field(default_factory=list)


def contents(index: str) -> dict[str, list[Page]]:
    """The sections of the table of contents, with their pages."""
    sections: dict[str, list[Page]] = {}
    pages: list[Page] = []
    for line in index.partition(CONTENTS)[2].splitlines():
        if line.startswith("## "):
            pages = sections[line[3:]] = []
        elif line.strip():
            if not (item := _ITEM.match(line)):
                raise ValueError(f"index.md: not a section and not `- [title](page.md): text`: {line}")
            indent, title, name, text = item.groups()
            (pages[-1].below if indent else pages).append(Page(title, name, text or ""))
    return sections


def add_toctrees(app: Sphinx, name: str, source: list[str]) -> None:
    """On source-read: the sidebar."""
    if name == "index":
        text, _, _ = source[0].partition(CONTENTS)
        for caption, pages in contents(source[0]).items():
            text += _toctree(pages, caption)
        source[0] = text
        return
    for pages in _sections(app).values():
        for page in pages:
            if page.name == name and page.below:
                source[0] += _toctree(page.below)


def _toctree(pages: list[Page], caption: str = "") -> str:
    captioned = f":caption: {caption}\n" if caption else ""
    entries = "\n".join(f"{page.title} </{page.name}>" for page in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n{captioned}\n{entries}\n```\n"


def _sections(app: Sphinx) -> dict[str, list[Page]]:
    return contents((Path(app.srcdir) / "index.md").read_text(encoding="utf-8"))


def write_llms(app: Sphinx) -> None:
    """`llms.txt` (llmstxt.org) at the root of the site."""
    base = app.config.html_baseurl
    lines = [f"# {app.config.project}", "", f"> {app.config.llms_summary}"]
    for caption, pages in _sections(app).items():
        lines += ["", f"## {caption}", ""]
        for page in [one for top in pages for one in (top, *top.below)]:
            about = f": {page.line}" if page.line else ""
            lines.append(f"- [{page.title}]({base}{page.name}.html){about}")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def lead_outside(app: Sphinx, name: str, source: list[str]) -> None:
    """On source-read: a link to a file of the checkout that is no page of the site leads to the repository."""
    docs = Path(app.srcdir).resolve()

    def to_repository(link: re.Match[str]) -> str:
        there = (docs / name).parent.joinpath(link[1]).resolve()
        if there.is_relative_to(docs) or not there.exists():
            return link[0]
        kind = "tree" if there.is_dir() else "blob"
        return f"]({app.config.repository_url}/{kind}/main/{there.relative_to(docs.parent).as_posix()}{link[2] or ''})"

    source[0] = _UPWARDS.sub(to_repository, source[0])


def hide_constructor(_app: Sphinx, what: str, *_: object) -> tuple[str, None] | None:
    """On autodoc-process-signature: users construct none of our classes, `connect` and its client do."""
    return ("", None) if what in {"class", "exception"} else None


def mark_code(_app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """On autodoc-process-docstring, before napoleon: a single backtick is code in a docstring, as in Markdown."""
    lines[:] = [_CODE.sub(_code_or_link, line) for line in lines]


def _code_or_link(code: re.Match[str]) -> str:
    """`Client.lock`, and every other member of a public class, leads to its text."""
    cls, _, member = code[1].partition(".")
    is_member = cls in dibs.__all__ and hasattr(getattr(dibs, cls), member or " ")
    return f":py:obj:`{code[1]}`" if is_member else f"``{code[1]}``"


def skip_aliases(_app: Sphinx, _what: str, _name: str, obj: object, _skip: bool, _options: object) -> bool | None:
    """On autodoc-skip-member: the fields of a named tuple, which its own docstring describes."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key == "id" and value:
                self.ids.add(value)
            elif key in {"href", "src"} and value:
                self.targets.add(value)


def broken_links(site: Path) -> list[str]:
    """Every link of a built site that leads to no file or to no anchor of it."""
    pages: dict[str, _Links] = {}
    for file in sorted(site.rglob("*.html")):
        links = pages[file.relative_to(site).as_posix()] = _Links()
        links.feed(file.read_text(encoding="utf-8"))
    wrong = []
    for name, links in pages.items():
        for target in sorted(links.targets):
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(url.path))) if url.path else name
            there = path in pages or (site / path).is_file()
            if not there or (url.fragment and path in pages and unquote(url.fragment) not in pages[path].ids):
                wrong.append(f"{name}: {target}")
    return wrong


def finish(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        write_llms(app)
        for link in broken_links(Path(app.outdir)):
            _log.warning("broken link in %s", link)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("repository_url", "", "env", str)
    app.add_config_value("llms_summary", "", "html", str)
    app.add_lexer("crontab", BashLexer)  # Pygments has none of that name
    app.connect("source-read", add_toctrees)
    app.connect("source-read", lead_outside)
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("autodoc-process-docstring", mark_code, priority=400)
    app.connect("autodoc-skip-member", skip_aliases)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
