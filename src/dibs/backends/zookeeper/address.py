"""The URL and the options of the store, parsed and checked without I/O.

    zookeeper://user:password@h1:2181,h2,[::1]/chroot?acl=creator-read

An option is a keyword of `connect` or stands in the query. No text here repeats what was given as a value.

| option                      | what it says                                                                           |
|-----------------------------|----------------------------------------------------------------------------------------|
| `auth`                      | how the login is shown to the server: "digest" (the default) or "sasl" (DIGEST-MD5)    |
| `acl`                       | who may touch our nodes: "open" to all, "creator", or all may read: "creator-read"     |
| `layout`                    | "semaphore-mutex": mutexes as Curator's InterProcessSemaphoreMutex has them            |
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
_NOT_IN_A_PATH = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
"""The server thinks in UTF-16 and refuses surrogates, hence everything beyond them."""


class Address:
    """
    >>> from dibs.url import parse
    >>> address = Address.of(parse("zookeeper://ana:secret@h1,h2:2182/app"), acl="open")
    >>> address.servers, address.chroot, address.acl
    ((('h1', 2181), ('h2', 2182)), '/app', 'open')
    >>> address
    <Address zookeeper://h1,h2:2182/app>
    """

    def __init__(
        self, shown: str, servers: tuple[tuple[str, int], ...], chroot: str, login: tuple[str, str] | None,
        auth: str, acl: str, layout: str | None, secure: bool, files: Mapping[str, str], given: SSLContext | None,
    ) -> None:  # fmt: skip
        self.shown = shown
        self.servers = servers
        self.chroot = chroot
        """Empty, or a path that begins with a slash and does not end with one."""
        self.login = login
        self.auth = auth
        self.acl = acl
        self.layout = layout
        self.secure = secure
        self._files = files
        self._given = given

    @classmethod
    def of(cls, url: Url, **options: object) -> Address:
        found = opts.parse(url.shown, url.query, options, _OPTIONS, {"ssl_context": _checked_context})
        secure = url.scheme == "zookeepers"
        files = _check_tls_options(url, found, secure)
        login = _login(url)
        if login is None and "auth" in found:
            raise ValueError(f"{url.shown}: auth= needs a login, and the URL has none")
        return cls(
            shown=url.shown,
            servers=opts.servers(url, PORT, "h1,h2,h3/chroot"),
            chroot=_chroot(url),
            login=login,
            auth=found.get("auth", "digest"),
            acl=_acl(url, found, login),
            layout=found.get("layout"),
            secure=secure,
            files=files,
            given=found.get("ssl_context"),
        )

    @cached_property
    def tls(self) -> SSLContext | None:
        """None for zookeeper://. Reads the files when it is first asked for; StoreError if that fails."""
        if not self.secure or self._given is not None:
            return self._given
        return tls.context(self.shown, self._files, encrypted="decrypt it, or load it into ssl_context= yourself")

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def _checked_context(shown: str, option: str, value: object) -> SSLContext:
    import ssl  # noqa: PLC0415  (who does not encrypt does not need it)

    if not isinstance(value, ssl.SSLContext):
        raise TypeError(f"{option} must be an ssl.SSLContext, not {type(value).__name__}")
    if value.protocol is ssl.PROTOCOL_TLS_SERVER:
        raise ValueError(f"{shown}: {option} is for servers: make it with ssl.create_default_context()")
    return value


def _check_tls_options(url: Url, found: Mapping[str, Any], secure: bool) -> dict[str, str]:
    """The files among them."""
    if "ssl_context" in found and not secure:
        raise ValueError(f"{url.shown}: ssl_context= has no effect without TLS: write zookeepers://")
    files = tls.files(url.shown, found, secure, "zookeepers")
    if files and "ssl_context" in found:
        raise ValueError(f"{url.shown}: {next(iter(files))}= and ssl_context= say the same: give one of them")
    return files


def _chroot(url: Url) -> str:
    """As the server itself would check it, so that a path is refused here and not at the first lock."""
    if url.path in ("", "/"):
        return ""
    if _NOT_IN_A_PATH.search(url.path):
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


def _acl(url: Url, found: Mapping[str, Any], login: tuple[str, str] | None) -> str:
    acl: str = found.get("acl", "open" if login is None else "creator")
    known = login is not None or "certificate" in found or "ssl_context" in found
    if acl != "open" and not known:
        raise ValueError(f'{url.shown}: acl="{acl}" needs an authenticated creator: put a login into the URL')
    return acl
