"""Logins: against recorded replies of Java's own DIGEST-MD5, and against faulty servers. tests/security/test_access.py
has SASL with a real server."""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.backends.zookeeper.wire import auth
from dibs.backends.zookeeper.wire.auth import DigestMd5, digest
from dibs.errors import DibsError, StoreError
from lab.servers.programs import Refused
from lab.servers.supervisor import Server
from lab.servers.zookeeper_session import Session, _buffer

CREATE, DELETE, ADD_AUTH = 1, 2, 100


def add_auth(session: Session, user: str, password: str) -> None:
    session._request(ADD_AUTH, struct.pack("!i", 0) + _buffer(b"digest") + _buffer(digest(user, password)))


@pytest.mark.parametrize(("user", "password"), [("ana", "пароль"), ("cem", "s p,a:=c\\e")])
def test_digest(server: Server, user: str, password: str) -> None:
    path = f"/digest-{user}"
    with Session(server.port) as session:
        add_auth(session, user, password)
        creator = struct.pack("!ii", 1, 31) + _buffer(b"auth") + _buffer(b"")
        session._request(CREATE, _buffer(path.encode()) + _buffer(b"1") + creator + struct.pack("!i", 0))
    with Session(server.port) as session:
        for login in (None, (user, password + "x"), (user + "x", password)):
            if login is not None:
                add_auth(session, *login)
            with pytest.raises(Refused, match="-102"):
                session.get(path)
        add_auth(session, user, password)
        assert session.get(path) == b"1"
        session._request(DELETE, _buffer(path.encode()) + struct.pack("!i", -1))


def test_the_example_of_the_rfc(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 2831, section 4."""
    monkeypatch.setattr(auth, "SERVICE", "imap/elwood.innosoft.com")
    monkeypatch.setattr(auth, "_fresh_nonce", lambda: b"OA6MHXh6VqTrRk")
    login = DigestMd5("chris", "secret")
    challenge = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
    assert set(login.answer(challenge).split(b",")) == {
        b"charset=utf-8", b'username="chris"', b'realm="elwood.innosoft.com"', b'nonce="OA6MG9tEQGm2hh"',
        b"nc=00000001", b'cnonce="OA6MHXh6VqTrRk"', b'digest-uri="imap/elwood.innosoft.com"',
        b"response=d388dad90d4bbd760a152321f2143af7", b"qop=auth",
    }  # fmt: skip
    login.confirm(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


NONCE = b"0123456789abcdef0123456789abcdef"
OFFERS = b'realm="zk-sasl-md5",nonce="%b",qop="%b"%b,algorithm=md5-sess'
UTF8 = b",charset=utf-8"
RECORDED = {
    "quotes": (('a"n\\a', 's"3\\c'), (b"9lNilWI9zOugZQK7FQYGBFGPukcPXQWdpX0vqGaN", b"auth", UTF8), b'"a\\"n\\\\a"',
               b"f0c2a35ad24003ae5d75539890224fbf", b"a4a22149819c7dd8096023e3881e5810"),
    "commas": (("a,realm=x", "é, ="), (b"NTr89tXAhGEXjEkk6GOQsOlcBbULHGjDaaqaJM8S", b"auth", UTF8), b'"a,realm=x"',
               b"0f4b1b21d34067fb0fde3b70a2de8ca2", b"5c4fc037f69eae3896df7e3603fe8fe3"),
    "beyond Latin-1": (("ä€", "ü日本"), (b"xyLRstBLWygNqVUmPTzxz+q/XExS4h/udnGqVGBw", b"auth", UTF8),
                       b'"\xc3\xa4\xe2\x82\xac"',
                       b"dc2cffae408d6262ecfe58d19a815a81", b"884aa33b5756e2c5db8fe65cfd81dc61"),
    "without UTF-8": (("jürg", "pässwörd"), (b"XbEUVAw/8E4MgBMU0GkX8hT/L9g5G5SZ6m3GOM4N", b"auth", b""), b'"j\xfcrg"',
                      b"1f34507749e0fd83a7a590f65b19c3bc", b"899b4661dc1ad69047d3dece547c6c20"),
    "several protections": (("ana", "s3cr3t"), (b"dmpUZFK00IOMYXgb+FVNG8hAwO3scE06BsL4MnlM", b"auth,auth-int", UTF8),
                            b'"ana"', b"8f272115ae9de622884bc90d1dbd6fc8", b"008128f39bd94591afe01e80efabb51f"),
}  # fmt: skip
"""Java's challenge, the response that it accepted, and its proof. ZooKeeper's configuration cannot have such users."""


def test_java_accepted_every_user_and_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_fresh_nonce", lambda: NONCE)
    for login, offered, user, response, proof in RECORDED.values():
        digest_md5 = DigestMd5(*login)
        answer = digest_md5.answer(OFFERS % offered)
        assert b"username=" + user + b"," in answer
        assert answer.endswith(b"response=" + response)
        digest_md5.confirm(b"rspauth=" + proof)
        with pytest.raises(StoreError, match="does not prove"):
            digest_md5.confirm(b"rspauth=" + proof)  # a proof is for one login


def test_a_password_that_needs_utf8() -> None:
    with pytest.raises(StoreError, match="cannot be written in ISO 8859-1") as caught:
        DigestMd5("ana", "s3cr3t пароль").answer(OFFERS % (b"n", b"auth", b""))
    assert caught.value.__context__ is None


GOOD = b'realm="r",nonce="n",charset=utf-8,algorithm=md5-sess'


BAD: list[tuple[bytes, str]] = [
    (b"", "no nonce"),
    (b'realm="r",algorithm=md5-sess', "no nonce"),
    (b'nonce="",algorithm=md5-sess', "no nonce"),
    (b'nonce="n"', "md5-sess"),
    (b'nonce="n",algorithm=md5', "md5-sess"),
    (b'nonce="n",algorithm=sha-256-sess', "md5-sess"),
    (GOOD + b',nonce="m"', "nonce twice"),
    (GOOD + b',qop="auth",qop="auth"', "qop twice"),
    (GOOD + b',qop="authority"', "qop"),
    (GOOD + b',qop="auth-int"', "qop"),
    (GOOD + b',qop="auth-conf"', "qop"),
    (GOOD + b',qop=""', "qop"),
    (b'nonce="n",algorithm=md5-sess,charset=utf-16', "charset"),
    (b'nonce="n",algorithm=md5-sess,charset=utf-8,realm="\xff"', "realm is not in UTF-8"),
    (b'nonce="n', "cannot be read"),
    (b'nonce="n\\"', "cannot be read"),
    (b"nonce", "cannot be read"),
    (b"nonce=", "cannot be read"),
    (b'="n"', "cannot be read"),
    (b'nonce="n" algorithm=md5-sess', "cannot be read"),
    (b'nonce="n"algorithm=md5-sess', "cannot be read"),
    (b"\x00\x00\x00\x00", "cannot be read"),
    (GOOD + b"," + b"x" * 3000 + b"=1", "bytes where at most 2048"),
]


def test_a_bad_challenge_is_refused() -> None:
    for challenge, why in BAD:
        with pytest.raises(StoreError, match=why) as caught:
            DigestMd5("ana", "s3cr3t").answer(challenge)
        assert caught.value.step is not None
        assert "s3cr3t" not in str(caught.value)
        assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_good_challenge_is_answered_with_a_fresh_number() -> None:
    numbers = set()
    for challenge in (
        GOOD,
        GOOD + b',stale=true,maxbuf=65536,cipher="rc4,des",whatever="it, is"',
        b' REALM = "r" ,\r\n\tnonce="n" , Algorithm=MD5-sess, qop="auth-conf, AUTH" ',
        GOOD + b',realm="another"',
    ):
        answer = DigestMd5("ana", "s3cr3t").answer(challenge)
        assert b'realm="r"' in answer
        assert b'nonce="n"' in answer
        assert b"s3cr3t" not in answer
        numbers.update(re.findall(rb'cnonce="([0-9a-f]{32})"', answer))
    assert len(numbers) == 4


def test_a_server_that_proves_nothing() -> None:
    for final in (b"", b"rspauth=", b"rspauth=0", b'rspauth=""', b"realm=x", b"\xff", b"rspauth=" + b"0" * 32):
        login = DigestMd5("ana", "s3cr3t")
        for _ in range(2):
            with pytest.raises(StoreError, match="SASL login failed"):
                login.confirm(final)
            login.answer(GOOD)


PARTS = st.sampled_from(
    [b'"', b"\\", b",", b"=", b"nonce", b"realm", b"n", b" ", b"algorithm=md5-sess", b"charset=utf-8", b"\xff"]
)


@given(text=st.binary(max_size=4096) | st.lists(PARTS, max_size=40).map(b"".join))
def test_no_reply_reveals_the_password(text: bytes) -> None:
    login = DigestMd5("ana", "s3cr3t")
    for read in (login.answer, login.confirm):
        try:
            read(text)
        except DibsError as error:
            assert "s3cr3t" not in f"{error} {error!r}"
    assert "s3cr3t" not in repr(login)
