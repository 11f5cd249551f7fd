"""Logins. No I/O.

`digest` makes the data of ZooKeeper's addauth packet. `DigestMd5` is SASL's DIGEST-MD5 (RFC 2831) with the quality of
protection "auth": it proves the password and encrypts nothing.

    login = DigestMd5(user, password)
    token = login.first()            # the server replies with a challenge
    token = login.answer(challenge)  # the server replies with its own proof
    login.confirm(final)             # the server knows the password too

The password is not sent, but a listener can guess it offline, so use TLS. A wrong reply of the server is a StoreError
that repeats no part of the reply.
"""

from __future__ import annotations

import re
from hashlib import md5
from hmac import compare_digest
from os import urandom

from dibs.errors import StoreError

SERVICE = "zookeeper/zk-sasl-md5"
"""The service name of every ZooKeeper server, on any host."""
LONGEST = 2048
"""The RFC's limit for a challenge, in bytes."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_DIRECTIVE = re.compile(
    rb"\s*(" + _TOKEN + rb")\s*=\s*" + rb'(?:"((?:[^"\\]|\\.)*)"|(' + _TOKEN + rb"))\s*", re.DOTALL
)  # fmt: skip
_COUNT = b"00000001"
"""The nonce count: a login uses its nonce once."""
_ONCE = frozenset({b"nonce", b"algorithm", b"charset", b"qop", b"rspauth"})


def digest(user: str, password: str) -> bytes:
    """The data of an addauth packet of scheme "digest"; contains the password."""
    return f"{user}:{password}".encode()


class DigestMd5:
    """One login on one connection."""

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password
        self._expected: bytes | None = None

    def __repr__(self) -> str:
        return "<DigestMd5>"

    def first(self) -> bytes:
        """Empty: the server begins with its challenge."""
        return b""

    def answer(self, challenge: bytes) -> bytes:
        """Prove that we know the password."""
        asked = _read(challenge)
        nonce, realm, utf8 = _understood(asked)
        secret = _secret(self._user, realm, self._password, utf8)
        own = _fresh_nonce()
        self._expected = _proof(secret, nonce, own, b":")
        parts = [
            *([b"charset=utf-8"] if utf8 else []),
            b"username=" + _quoted(_encoded(self._user, utf8)),
            *([] if realm is None else [b"realm=" + _quoted(_encoded(realm, utf8))]),
            b"nonce=" + _quoted(nonce),
            b"nc=" + _COUNT,
            b"cnonce=" + _quoted(own),
            b"digest-uri=" + _quoted(SERVICE.encode()),
            b"qop=auth",
            b"response=" + _proof(secret, nonce, own, b"AUTHENTICATE:"),
        ]
        return b",".join(parts)

    def confirm(self, final: bytes) -> None:
        """Check the server's proof that it knows the password too."""
        expected, self._expected = self._expected, None
        proof = _read(final).get(b"rspauth")
        if proof is None or expected is None:
            raise _refused("the server does not prove that it knows the password")
        if not compare_digest(proof[0], expected):
            raise _refused("the server's proof that it knows the password is wrong")


def _read(text: bytes) -> dict[bytes, list[bytes]]:
    """Parse directives: the values of each, without quotes."""
    if len(text) > LONGEST:
        raise _refused(f"the server sent {len(text)} bytes where at most {LONGEST} may be")
    found: dict[bytes, list[bytes]] = {}
    at = 0
    while at < len(text):
        match = _DIRECTIVE.match(text, at)
        if match is None or text[match.end() : match.end() + 1] not in (b"", b","):
            raise _refused("what the server sent cannot be read")
        name, quoted, token = match.groups()
        value = token if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL)
        found.setdefault(name.lower(), []).append(value)
        at = match.end() + 1
    twice = next((name.decode() for name in found.keys() & _ONCE if len(found[name]) > 1), None)
    if twice is not None:
        raise _refused(f"the server sent {twice} twice")
    return found


def _understood(asked: dict[bytes, list[bytes]]) -> tuple[bytes, str | None, bool]:
    """The nonce, the realm if there is one, and whether texts are UTF-8. Raises if the server requires more."""

    def one(name: bytes, default: bytes = b"") -> bytes:
        return asked.get(name, [default])[0]

    if not one(b"nonce"):
        raise _refused("the server sent no nonce")
    if one(b"algorithm").lower() != b"md5-sess":
        raise _refused("the server does not offer the algorithm md5-sess")
    if b"auth" not in one(b"qop", b"auth").lower().replace(b" ", b"").split(b","):
        raise _refused("the server insists on a protection of its own (qop): only auth is possible, with TLS around it")
    if one(b"charset", b"utf-8").lower() != b"utf-8":
        raise _refused("the server asks for another charset than utf-8")
    utf8 = b"charset" in asked
    if b"realm" not in asked:
        return one(b"nonce"), None, utf8
    try:
        return one(b"nonce"), one(b"realm").decode("utf-8" if utf8 else "latin-1"), utf8
    except UnicodeDecodeError:
        raise _refused("the server's realm is not in UTF-8") from None


def _secret(user: str, realm: str | None, password: str, utf8: bool) -> bytes:
    """The shared secret. Each text is hashed in ISO 8859-1 if possible, even if the server uses UTF-8."""

    def hashed(text: str) -> bytes:
        return _encoded(text, utf8 and any(ord(letter) > 255 for letter in text))

    return _md5(b":".join(map(hashed, (user, realm or "", password))))


def _proof(secret: bytes, nonce: bytes, own: bytes, method: bytes) -> bytes:
    """A proof in hexadecimal; `method` distinguishes ours from the server's."""
    who = _hex(secret + b":" + nonce + b":" + own)
    what = _hex(method + SERVICE.encode())
    return _hex(b":".join((who, nonce, _COUNT, own, b"auth", what)))


def _fresh_nonce() -> bytes:
    return urandom(16).hex().encode()


def _encoded(text: str, utf8: bool) -> bytes:
    if utf8:
        return text.encode()
    if any(ord(letter) > 255 for letter in text):  # the exception of encode() would contain the password
        raise _refused("the server does not speak UTF-8, and the login cannot be written in ISO 8859-1")
    return text.encode("latin-1")


def _quoted(value: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", value) + b'"'


def _md5(data: bytes) -> bytes:
    return md5(data, usedforsecurity=False).digest()  # otherwise it fails under FIPS rules


def _hex(data: bytes) -> bytes:
    return _md5(data).hex().encode()


def _refused(why: str) -> StoreError:
    return StoreError(f"the SASL login failed: {why}", step="check that this is a ZooKeeper server with DIGEST-MD5")
