"""The URL of a store.

Only `Url.shown` may appear in a repr, a log, an error or a title: it has no user, password or query. A URL that cannot
be parsed is never repeated. A URL may name several hosts with one login: `scheme://h1:2181,h2,[::1]/path`.
"""

from __future__ import annotations

import re

QUORUM = "quorum+"
"""The prefix of a scheme whose hosts are members of a quorum."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::([0-9]{1,5}))?")
"""One host, with or without brackets, and its port."""
_OF_FILES = frozenset({"sqlite", "unix"})
"""Schemes whose path is a file: there an @ is allowed, and no part of a password."""

Host = tuple[str, int | None]


class Url:
    """
    >>> parse("redis://:secret@cache:6379/0").shown
    'redis://cache:6379/0'
    >>> parse("zookeeper://h1:2181,[::1]/app").hosts
    (('h1', 2181), ('::1', None))
    """

    __slots__ = ("host", "hosts", "password", "path", "port", "query", "scheme", "username")

    def __init__(
        self, scheme: str, username: str | None, password: str | None, host: str, port: int | None,
        hosts: tuple[Host, ...], path: str, query: tuple[tuple[str, str], ...],
    ) -> None:  # fmt: skip
        self.scheme = scheme
        self.username = username
        self.password = password
        self.host = host
        """As written; several hosts with their ports."""
        self.port = port
        """None if there are several hosts."""
        self.hosts = hosts
        """Each host, without brackets, and its port; may be empty."""
        self.path = path
        self.query = query

    @property
    def shown(self) -> str:
        port = f":{self.port}" if self.port is not None else ""
        return f"{self.scheme}://{self.host}{port}{self.path}"

    def __repr__(self) -> str:
        return f"<Url {self.shown}>"


def parse(text: object) -> Url:
    """Parse a URL. Raises ValueError, without repeating the text."""
    from urllib.parse import parse_qsl, unquote  # noqa: PLC0415  (slow, and not every program connects)

    if not isinstance(text, str):
        raise TypeError(f"a store's URL must be a str, not {type(text).__name__}")
    if _has_control(text):
        raise ValueError("a store's URL must not contain control characters")
    scheme, sign, rest = text.partition("://")
    if not sign or not _SCHEME.fullmatch(scheme):
        raise ValueError("a store's URL looks like scheme://..., such as sqlite:///locks.db")
    authority, path, query = _split(rest)
    if (authority or scheme.lower() not in _OF_FILES) and "@" in path + query:
        raise ValueError(f"the {scheme[:20]}:// URL is broken: write /, ?, # and @ in a password as %2F, %3F, %23, %40")
    if _has_control(unquote(path)):
        raise ValueError("a store's URL must not contain control characters, not even as %00")
    login, at, written = authority.rpartition("@")
    username, colon, password = login.partition(":")
    if "," in username + login.partition("@")[2]:
        raise ValueError(
            f"the {scheme[:20]}:// URL is broken: one login goes before all hosts, user:password@h1,h2 "
            "(write a comma in it as %2C)"
        )
    hosts = _hosts(written)
    if hosts is None:  # raised here, so that no chained exception repeats the URL
        raise ValueError(f"the {scheme[:20]}:// URL is broken: check its hosts, brackets and ports (1-65535)")
    port = hosts[0][1] if len(hosts) == 1 else None
    return Url(
        scheme=scheme.lower(),
        username=unquote(username) if at else None,
        password=unquote(password) if colon else None,
        host=written if port is None else written.rpartition(":")[0],
        port=port,
        hosts=hosts,
        path=unquote(path),
        query=tuple(parse_qsl(query, keep_blank_values=True)),
    )


def members(url: Url) -> list[Url]:
    """The members of a quorum: one URL for each host, with the same login, path and options.

    >>> [member.shown for member in members(parse("quorum+redis://:secret@h1,h2:7000,[::1]/2?guard=60"))]
    ['redis://h1/2', 'redis://h2:7000/2', 'redis://[::1]/2']
    """
    if not url.hosts:
        raise ValueError(f"{url.shown}: the URL names no member: {url.scheme}://h1,h2,h3")
    query = tuple((key, value) for key, value in url.query if key != "guard")
    return [
        Url(url.scheme.removeprefix(QUORUM), url.username, url.password, f"[{name}]" if ":" in name else name, port,
            ((name, port),), url.path, query)
        for name, port in url.hosts
    ]  # fmt: skip


def _split(rest: str) -> tuple[str, str, str]:
    """Split the text after :// into authority, path and query. A # begins no fragment, but ends the authority."""
    end = next((at for at, sign in enumerate(rest) if sign in "/?#"), len(rest))
    path, _, query = rest[end:].partition("?")
    return rest[:end], path, query


def _hosts(written: str) -> tuple[Host, ...] | None:
    """None: a host is malformed."""
    if not written:
        return ()
    found = [_host(one) for one in written.split(",")]
    return None if None in found else tuple(host for host in found if host is not None)


def _host(written: str) -> Host | None:
    match = _HOST.fullmatch(written)
    if match is None or _means_another(written):
        return None
    bracketed, name, digits = match.groups()
    port = None if digits is None else int(digits)
    if port is not None and not 1 <= port <= 65535:
        return None
    if bracketed is None:
        return name, port
    return (bracketed.replace("%25", "%"), port) if _is_ipv6(bracketed) else None


def _means_another(host: str) -> bool:
    """Whether normalisation, as resolvers do it, produces a character that would end the host."""
    if host.isascii():
        return False
    from unicodedata import normalize  # noqa: PLC0415  (nearly every host is ASCII)

    foreign = "".join(letter for letter in host if not letter.isascii())
    return any(sign in normalize("NFKC", foreign) for sign in "/?#@:,[]")


def _is_ipv6(text: str) -> bool:
    from ipaddress import AddressValueError, IPv6Address  # noqa: PLC0415  (few hosts are in brackets)

    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def _has_control(text: str) -> bool:
    return any(ord(c) < 32 or ord(c) == 127 for c in text)
