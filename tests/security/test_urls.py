"""URLs with secrets: thousands of them, whole and broken; the secret is shown nowhere.

Nowhere: not in repr, str and store of what is raised or made, not in what is logged, not in a printed traceback, and
not in the exceptions that hang from the one that is raised, which debuggers and error trackers walk along.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from urllib.parse import quote

import pytest

import dibs
import dibs.aio
from dibs.testing.contract.harness import APIS
from dibs.url import parse

SECRET = "s3cr3t"
COUNT = 6_000
SCHEMES = [
    "redis", "rediss", "redis+cluster", "mysql", "postgresql", "zookeeper", "zookeepers", "memory", "sqlite", "unix",
    "gopher",
]  # fmt: skip
HOSTS = [
    "host", "10.0.0.1", "[::1]", "[::1", "::1]", "h1,h2:6379,h3", "", "host:99999", "host:0", "host:x", "ho st",
    "\u210cost", "h1:1,[::1]:2,10.0.0.1", "h1,", ",h2", "h1,,h2", "h1,[::1", "h1:0,h2", "h1,h2:x", "h1, h2", "h1:,h2",
    "[::1%25eth0],h2", "[h1,h2]",
]  # fmt: skip
TAILS = ["", "/", "/0", "/a.db", "/0?timeout=5", "?x=[", "#f", "//", "/%00", "/%zz", "/\u2100", "?next=redis://other"]
SHAPES = [
    "{scheme}://{user}:{secret}@{host}{tail}",
    "{scheme}://:{secret}@{host}{tail}",
    "{scheme}://{secret}@{host}{tail}",
    "{scheme}://{host}/0?password={secret}",
    "{scheme}://{host}?user=x&password={secret}&x=[",
    "{scheme}://{user}:{secret}@{host}:port{tail}",
    "{scheme}:///{user}:{secret}@{host}{tail}",
    "{scheme}:/{user}:{secret}@{host}{tail}",
    "{scheme}:{user}:{secret}@{host}{tail}",
    "{user}:{secret}@{scheme}://{host}{tail}",
    "{user}:{secret}@{host}{tail}",
    " {scheme}://{user}:{secret}@{host}{tail}",
    "{scheme}://{user}:{secret}@{user}:{secret}@{host}{tail}",
    "{scheme}://{user}:{secret}@h1,{user}:{secret}@{host}{tail}",
    "{scheme}://{secret}@h1,{secret}@{host}{tail}",
    "{scheme}://h1,{user}:{secret}@{host}{tail}",
]
AROUND = [
    "", "/", "?", "#", "[", "]", "@", ":", ",", "&", "=", "%", "%2F", "%40", "\u2100", "\u2048", "é", " ", "\\", "'",
    '"', "\n", "\ud800",
]  # fmt: skip


def urls(seed: int) -> Iterator[str]:
    dice = random.Random(seed)
    while True:
        secret = dice.choice(AROUND) + SECRET + dice.choice(AROUND) + SECRET
        if dice.random() < 0.3:
            secret = quote(secret, safe="", errors="replace")
        text = dice.choice(SHAPES).format(
            scheme=dice.choice(SCHEMES), user=dice.choice(["", "ana", "a na", "ana%40x"]), secret=secret,
            host=dice.choice(HOSTS), tail=dice.choice(TAILS),
        )  # fmt: skip
        yield text


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and all that hang from it, also those that a traceback leaves out."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def printed(error: BaseException) -> str:
    """The traceback of an error without its source lines, which have no secret in them."""
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    own = "".join(traceback.format_exception_only(error))
    return own if behind is None else printed(behind) + own


def said_of(api: ModuleType, url: str) -> tuple[str, str]:
    """Everything that shows a URL in use: the printed text, and the exceptions behind it."""
    try:
        client = api.connect(url)
    except (ValueError, TypeError, dibs.DibsError) as error:
        words = f"{error!r} {error} {getattr(error, 'store', '')} {getattr(error, 'step', '')}"
        return words + printed(error), " ".join(f"{one!r} {one}" for one in chain(error))
    return f"{client!r} {client} {client.lock('a')!r}", ""


def is_file(url: str) -> bool:
    """After sqlite:/// comes a path, and a path is no secret."""
    return url.startswith(("sqlite:", "unix:")) and "?" not in url.partition(SECRET)[0]


def test_a_secret_is_shown_nowhere(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who else offers stores is looked up anew for each URL, which takes a millisecond and says nothing about secrets.
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    caplog.set_level(logging.DEBUG)
    shown, kept = [], []
    for number, url in zip(range(COUNT), urls(25), strict=False):
        if not is_file(url):
            with suppress(ValueError):
                shown += [url] if SECRET in f"{parse(url)!r} {parse(url).shown}" else []
            seen, behind = said_of(list(APIS.values())[number % len(APIS)], url)
            shown += [url] if SECRET in seen else []
            kept += [url] if SECRET in behind else []
    assert SECRET not in caplog.text
    assert shown[:5] == []
    assert kept[:5] == [], f"{len(kept)} of {COUNT} are kept in the exceptions behind the one that is raised"
