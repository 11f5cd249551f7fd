"""A store's address: parsed once, and shown without its secrets.

`Url.shown` is the only form that may appear in a repr, a log, an error or a title: no user, no password, no query.
What cannot be parsed is never echoed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_OF_FILES = frozenset({"sqlite", "unix"})
"""Where the path is a file's: only there an @ in it is no password gone astray."""


class Url:
    """
    >>> parse("redis://:secret@cache:6379/0").shown
    'redis://cache:6379/0'
    """

    __slots__ = ("host", "password", "path", "port", "query", "scheme", "username")

    def __init__(
        self, scheme: str, username: str | None, password: str | None, host: str, port: int | None, path: str,
        query: tuple[tuple[str, str], ...],
    ) -> None:  # fmt: skip
        self.scheme = scheme
        self.username = username
        self.password = password
        self.host = host
        self.port = port
        self.path = path
        self.query = query

    @property
    def shown(self) -> str:
        port = f":{self.port}" if self.port is not None else ""
        return f"{self.scheme}://{self.host}{port}{self.path}"

    def __repr__(self) -> str:
        return f"<Url {self.shown}>"


def parse(text: object) -> Url:
    """The parts of a URL, or a ValueError that does not repeat what was given."""
    from urllib.parse import unquote  # noqa: PLC0415  (as below)

    if not isinstance(text, str):
        raise TypeError(f"a store's URL must be a str, not {type(text).__name__}")
    if _has_control(text):
        raise ValueError("a store's URL must not hold control characters")
    scheme, sign, _ = text.partition("://")
    if not sign or not _SCHEME.fullmatch(scheme):
        raise ValueError("a store's URL looks like scheme://..., such as sqlite:///locks.db")
    split = _split(text)
    if split is None:  # raised here, where the exception that quotes the URL is over: nothing hangs from this one
        raise ValueError(f"the {scheme[:20]}:// URL is broken: check its host, brackets and port (1-65535)")
    parts, port, query = split
    if (parts.netloc or parts.scheme not in _OF_FILES) and "@" in parts.path + parts.query:
        raise ValueError(f"the {scheme[:20]}:// URL is broken: write /, ?, # and @ in a password as %2F, %3F, %23, %40")
    if _has_control(unquote(parts.path)):
        raise ValueError("a store's URL must not hold control characters, also not as %00")
    if port == 0:
        raise ValueError(f"the {scheme[:20]}:// URL has port 0")
    host = parts.netloc.rpartition("@")[2]
    if port is not None:
        host = host.rpartition(":")[0]
    return Url(
        scheme=parts.scheme,
        username=unquote(parts.username) if parts.username is not None else None,
        password=unquote(parts.password) if parts.password is not None else None,
        host=host,
        port=port,
        path=unquote(parts.path),
        query=query,
    )


def _split(text: str) -> tuple[SplitResult, int | None, tuple[tuple[str, str], ...]] | None:
    from urllib.parse import parse_qsl, urlsplit  # noqa: PLC0415  (a program imports dibs, and may never connect)

    try:
        parts = urlsplit(text, allow_fragments=False)
        return parts, parts.port, tuple(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        return None


def _has_control(text: str) -> bool:
    return any(ord(c) < 32 or ord(c) == 127 for c in text)
