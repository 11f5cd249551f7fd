"""The checks of a request (host, token, origin), its refusal, and the headers that every answer has."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping
from typing import Any

Scope = Mapping[str, Any]
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)


class Problem(Exception):
    """A request that gets no answer but a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def header(scope: Scope, name: str) -> str:
    """The value of a request header; several are joined by commas; empty: there is none."""
    wanted = name.encode()
    return ",".join(value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted)


class Guard:
    def __init__(self, token: str | None, hosts: Collection[str] | None) -> None:
        self._token = token
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.csrf = secrets.token_urlsafe(32)
        """Only pages of this dashboard can read it: a page of another site cannot send it."""
        digest = "" if token is None else self._digest(token, "cookie")
        self._cookie = digest[:43]
        self._cookie_name = f"dibs_{digest[-8:]}"
        """Two dashboards of one host have two cookies: browsers do not tell ports apart."""

    @staticmethod
    def _digest(token: str, use: str) -> str:
        return hmac.new(token.encode(), f"dibs dashboard {use}".encode(), hashlib.sha256).hexdigest()

    def knows_host(self, scope: Scope) -> bool:
        """Whether the request names this server: a page of another site may make its own name lead here."""
        return self._hosts is None or host_name(header(scope, "host")) in self._hosts

    def admits(self, scope: Scope) -> bool:
        if self._token is None:
            return True
        kind, _, given = header(scope, "authorization").partition(" ")
        if kind.lower() == "bearer" and self.is_token(given.strip()):
            return True
        # Other servers of this host set cookies, too, and not all of them are valid: http.cookies then reads none.
        pairs = (pair.strip().partition("=") for pair in header(scope, "cookie").split(";"))
        return any(key == self._cookie_name and _same(value, self._cookie) for key, _, value in pairs)

    def is_token(self, given: str) -> bool:
        return self._token is not None and _same(given, self._token)

    def set_cookie(self, scope: Scope) -> str:
        """Without a path it is sent to the directory of this request, also behind a proxy that removes a prefix. `Lax`
        lets links of other sites lead here; `may_change` refuses their requests to break."""
        is_https = "https" in (scope.get("scheme"), header(scope, "x-forwarded-proto").partition(",")[0].strip())
        return f"{self._cookie_name}={self._cookie}; HttpOnly; SameSite=Lax{'; Secure' if is_https else ''}"

    def is_cross_site(self, scope: Scope) -> bool:
        """A page of another site can open a stream. It cannot read it, but would keep a place and the sampling busy."""
        return header(scope, "sec-fetch-site") == "cross-site"

    def may_change(self, scope: Scope) -> str | None:
        """None, or why a request that changes something is refused."""
        kind = header(scope, "content-type").partition(";")[0].strip().lower()
        if kind != "application/json":
            return "the content type must be application/json"
        site = header(scope, "sec-fetch-site")
        origin = header(scope, "origin").partition("://")[2]
        if not origin and not site:
            return "the request does not say which page sent it"
        if site not in ("", "same-origin") or (not site and origin.lower() != header(scope, "host").lower()):
            return "the request comes from another site"
        if not _same(header(scope, "x-dibs-csrf"), self.csrf):
            return "the header X-Dibs-CSRF is missing or old; load the page again"
        return None


def host_name(host: str) -> str:
    """The host of a Host header, without its port.

    >>> [host_name(host) for host in ("LOCALHOST:8765", "[::1]:80", "127.0.0.1")]
    ['localhost', '::1', '127.0.0.1']
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())
