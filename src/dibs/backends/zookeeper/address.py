"""The URL and the options of the store, parsed and checked without I/O.

    zookeeper://user:password@h1:2181,h2,[::1]/chroot?acl=creator-read

An option is a keyword of `connect`, or part of the query. No error text repeats a value: it may be a secret.

| option                      | meaning                                                                                |
|-----------------------------|----------------------------------------------------------------------------------------|
| `auth`                      | how to log in: "digest" (the default) or "sasl" (DIGEST-MD5)                           |
| `acl`                       | who may use our nodes: "open" to all, "creator", or all may read: "creator-read"       |
| `layout`                    | "semaphore-mutex": mutexes in the layout of Curator's InterProcessSemaphoreMutex       |
| `ca`, `certificate`, `key`  | PEM files for zookeepers://: trusted CAs, our own certificate and its key              |
| `ssl_context`               | in place of these files; by keyword only                                               |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dibs.backends.common import options as opts
from dibs.backends.common import tls
from dibs.backends.zookeeper.paths import BAD_CHARACTER
from dibs.url import Url

if TYPE_CHECKING:
    from ssl import SSLContext

PORT = 2181
_OPTIONS = {
    "auth": opts.word("digest", "sasl"),
    "acl": opts.word("open", "creator", "creator-read"),
    "layout": opts.word("semaphore-mutex"),
    **dict.fromkeys(tls.FILES, opts.file),
}
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Address:
    """
    >>> from dibs.url import parse
    >>> address = Address(parse("zookeeper://ana:secret@h1,h2:2182/app"), acl="open")
    >>> address.servers, address.chroot, address.acl
    ((('h1', 2181), ('h2', 2182)), '/app', 'open')
    >>> address
    <Address zookeeper://h1,h2:2182/app>
    """

    def __init__(self, url: Url, **options: object) -> None:
        found = opts.parse(url.shown, url.query, options, _OPTIONS, {"ssl_context": _checked_context})
        self.shown = url.shown
        self.secure = url.scheme == "zookeepers"
        self._files = _check_tls_options(url, found, self.secure)
        self._context: SSLContext | None = found.get("ssl_context")
        self.login = _login(url)
        if self.login is None and "auth" in found:
            raise ValueError(f"{url.shown}: auth= needs a login, and the URL has none")
        self.servers = opts.servers(url, PORT, "h1,h2,h3/chroot")
        self.chroot = _chroot(url)
        """Empty, or a path that begins with a slash and does not end with one."""
        self.auth: str = found.get("auth", "digest")
        self.acl: str = found.get("acl", "open" if self.login is None else "creator")
        if self.acl != "open" and self.login is None and not found.keys() & {"certificate", "ssl_context"}:
            raise ValueError(f'{url.shown}: acl="{self.acl}" needs an authenticated creator: put a login into the URL')
        self.layout: str | None = found.get("layout")

    @cached_property
    def tls(self) -> SSLContext | None:
        """None for zookeeper://. The first access reads the files; StoreError if that fails."""
        if not self.secure or self._context is not None:
            return self._context
        return tls.context(self.shown, self._files, encrypted="decrypt it, or load it into ssl_context= yourself")

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def _checked_context(shown: str, option: str, value: object) -> SSLContext:
    import ssl  # noqa: PLC0415  (a client without TLS does not load it)

    if not isinstance(value, ssl.SSLContext):
        raise TypeError(f"{option} must be an ssl.SSLContext, not {type(value).__name__}")
    if value.protocol is ssl.PROTOCOL_TLS_SERVER:
        raise ValueError(f"{shown}: {option} is for servers: make it with ssl.create_default_context()")
    return value


def _check_tls_options(url: Url, found: Mapping[str, Any], secure: bool) -> dict[str, str]:
    """The PEM files."""
    if "ssl_context" in found and not secure:
        raise ValueError(f"{url.shown}: ssl_context= has no effect without TLS: write zookeepers://")
    files = tls.files(url.shown, found, secure, "zookeepers")
    if files and "ssl_context" in found:
        raise ValueError(f"{url.shown}: {next(iter(files))}= and ssl_context= say the same: give one of them")
    return files


def _chroot(url: Url) -> str:
    """Checked as the server would, so that a bad path is refused now and not at the first lock."""
    if url.path in ("", "/"):
        return ""
    if BAD_CHARACTER.search(url.path):
        raise ValueError(
            f"{url.scheme}://{url.host}: the chroot contains a character that ZooKeeper paths must not contain"
        )
    first, *parts = url.path.split("/")
    if first or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{url.shown}: the chroot must look like /a/b: no part of it empty, . or ..")
    return url.path


def _login(url: Url) -> tuple[str, str] | None:
    if url.username is None:
        return None
    if not url.username or not url.password:
        raise ValueError(f"{url.shown}: a login is a user and a password: {url.scheme}://user:password@host")
    if ":" in url.username:
        raise ValueError(
            f"{url.shown}: a user's name must not contain a colon: the server takes the rest as the password"
        )
    if _CONTROL.search(url.username + url.password):
        raise ValueError(f"{url.shown}: user and password must not contain control characters")
    return url.username, url.password
