"""Logins: against ZooKeeper itself, against Java's own DIGEST-MD5, and what is said to a server that gets it wrong."""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

import contextlib
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.backends.zookeeper.wire import auth
from dibs.backends.zookeeper.wire.auth import DigestMd5, digest
from dibs.errors import DibsError, StoreError
from lab.servers.programs import Refused, environment, program, require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_session import SASL, Session, _buffer, _first_buffer

CREATE, DELETE, ADD_AUTH = 1, 2, 100
LOGINS = {"ana": "s3cr3t", "jürg": "pässwörd", "bob": "пароль 日本", "дина": "ascii", "eve": 'a\\"b,c=d'}
VERIFIER = """
import java.nio.charset.StandardCharsets;
import java.util.*;
import javax.security.auth.callback.*;
import javax.security.sasl.*;

public class Verifier {
    public static void main(String[] words) throws Exception {
        Scanner in = new Scanner(System.in);
        HexFormat hex = HexFormat.of();
        while (in.hasNext()) {
            String password = new String(hex.parseHex(in.next()), StandardCharsets.UTF_8);
            String realm = new String(hex.parseHex(in.next()), StandardCharsets.UTF_8);
            Map<String, String> settings = new HashMap<>();
            settings.put("com.sun.security.sasl.digest.realm", realm);
            settings.put("com.sun.security.sasl.digest.utf8", in.next());
            settings.put(Sasl.QOP, in.next());
            String[] seen = {""};
            SaslServer server = Sasl.createSaslServer("DIGEST-MD5", "zookeeper", "zk-sasl-md5", settings, asked -> {
                for (Callback one : asked) {
                    if (one instanceof NameCallback name) seen[0] = name.getDefaultName();
                    if (one instanceof PasswordCallback secret) secret.setPassword(password.toCharArray());
                    if (one instanceof AuthorizeCallback right) right.setAuthorized(true);
                }
            });
            System.out.println(hex.formatHex(server.evaluateResponse(new byte[0])));
            String answer = in.next();
            if (answer.equals("-")) continue;
            try {
                byte[] proof = server.evaluateResponse(hex.parseHex(answer));
                byte[] user = seen[0].getBytes(StandardCharsets.UTF_8);
                System.out.println(hex.formatHex(proof) + " " + hex.formatHex(user));
            } catch (SaslException refused) {
                System.out.println("refused");
            }
        }
    }
}
"""


class Verifier:
    """Java's DIGEST-MD5 as ZooKeeper uses it, for users and realms that ZooKeeper's configuration cannot express."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _tell(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

    def challenge(self, password: str, realm: str = "zk-sasl-md5", *, utf8: bool = True, qop: str = "auth") -> bytes:
        self._tell(password.encode().hex(), realm.encode().hex(), str(utf8).lower(), qop)
        return bytes.fromhex(self._hear()[0])

    def verdict(self, answer: bytes) -> tuple[bytes, str] | None:
        """Its own proof and the user that it understood; None: refused."""
        self._tell(answer.hex())
        said = self._hear()
        return None if said == ["refused"] else (bytes.fromhex(said[0]), bytes.fromhex(said[1]).decode())

    def drop(self) -> None:
        self._tell("-")


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifier]:
    require("curator")  # for javac, without which java runs no source
    path = tmp_path_factory.mktemp("java") / "Verifier.java"
    path.write_text(VERIFIER)
    command = [program("java"), "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            yield Verifier(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def sasl_server() -> Iterator[Server]:
    require("zookeeper")
    with Server(
        ZooKeeper(sasl={user: password.replace("\\", "\\\\").replace('"', '\\"') for user, password in LOGINS.items()})
    ) as server:
        yield server


def sasl(session: Session, token: bytes) -> bytes:
    return _first_buffer(session._request(SASL, _buffer(token)))


def log_in(session: Session, login: DigestMd5) -> None:
    login.confirm(sasl(session, login.answer(sasl(session, login.first()))))


def test_sasl_as_zookeeper_speaks_it(sasl_server: Server) -> None:
    for user, password in LOGINS.items():
        with Session(sasl_server.port) as session:
            log_in(session, DigestMd5(user, password))
            with pytest.raises(Refused, match="-101"):  # no such node: it was let in
                session.get("/none")


@pytest.mark.parametrize("login", [("ana", "wrong"), ("nobody", "wrong"), ("jürg", "passwort"), ('a"na', "wrong")])
def test_sasl_with_a_wrong_password(sasl_server: Server, login: tuple[str, str]) -> None:
    """No name that it does not know comes with a password that it does: ZooKeeper 3.8 would let that in."""
    session = Session(sasl_server.port)
    try:
        with pytest.raises(Refused, match="-124"):
            log_in(session, DigestMd5(*login))
    finally:
        with contextlib.suppress(Refused):
            session.close()


def test_a_server_that_does_not_know_the_password_is_found_out(sasl_server: Server) -> None:
    """Its proof is for the password that it has, not for any that is said."""
    with Session(sasl_server.port) as session:
        login, other = DigestMd5("ana", LOGINS["ana"]), DigestMd5("ana", "another")
        challenge = sasl(session, login.first())
        final = sasl(session, login.answer(challenge))
        other.answer(challenge)
        with pytest.raises(StoreError, match=r"proof .* is wrong"):
            other.confirm(final)
        login.confirm(final)
        with pytest.raises(StoreError, match="does not prove"):
            login.confirm(final)  # a proof is good for one login


def add_auth(session: Session, user: str, password: str) -> None:
    session._request(ADD_AUTH, struct.pack("!i", 0) + _buffer(b"digest") + _buffer(digest(user, password)))


@pytest.mark.parametrize(("user", "password"), [("ana", "пароль"), ("bob", "a:b:c"), ("cem", "s p,a=c\\e")])
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


TAKEN = {
    "quotes": ('a"n\\a', 's"3\\c', {}),
    "commas": ("a,realm=x", "é, =", {}),
    "beyond Latin-1": ("ä\u20ac", "ü日本", {}),
    "realm": ("ana", "s3cr3t", {"realm": 'zürich 日本 a"b\\c'}),
    "without UTF-8": ("jürg", "pässwörd", {"utf8": False}),
    "several protections": ("ana", "s3cr3t", {"qop": "auth,auth-int"}),
}


@pytest.mark.parametrize("case", TAKEN)
def test_java_takes_every_user_password_and_realm(verifier: Verifier, case: str) -> None:
    user, password, options = TAKEN[case]
    login = DigestMd5(user, password)
    seen = verifier.verdict(login.answer(verifier.challenge(password, **options)))
    assert seen is not None
    assert seen[1] == user
    login.confirm(seen[0])


def test_java_refuses_what_it_should(verifier: Verifier) -> None:
    """Else it would prove nothing that it takes the others."""
    assert verifier.verdict(DigestMd5("ana", "wrong").answer(verifier.challenge("s3cr3t"))) is None


@pytest.mark.parametrize(
    ("options", "why"),
    [({"qop": "auth-int"}, "qop"), ({"qop": "auth-conf"}, "qop"), ({"utf8": False}, "cannot be written in ISO 8859-1")],
)
def test_what_we_do_not_say_to_java(verifier: Verifier, options: dict[str, Any], why: str) -> None:
    challenge = verifier.challenge("s3cr3t", **options)
    verifier.drop()
    with pytest.raises(StoreError, match=why) as caught:
        DigestMd5("ana", "s3cr3t пароль").answer(challenge)
    assert caught.value.__context__ is None


GOOD = b'realm="r",nonce="n",charset=utf-8,algorithm=md5-sess'


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b"", "no nonce"),
        (b'realm="r",algorithm=md5-sess', "no nonce"),
        (b'nonce="",algorithm=md5-sess', "no nonce"),
        (b'nonce="n"', "md5-sess"),
        (b'nonce="n",algorithm=md5', "md5-sess"),
        (b'nonce="n",algorithm=sha-256-sess', "md5-sess"),
        (GOOD + b',nonce="m"', "nonce twice"),
        (GOOD + b',qop="auth",qop="auth"', "qop twice"),
        (GOOD + b',qop="authority"', "qop"),
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
    ],
)
def test_a_challenge_that_will_not_do(challenge: bytes, why: str) -> None:
    with pytest.raises(StoreError, match=why) as caught:
        DigestMd5("ana", "s3cr3t").answer(challenge)
    assert caught.value.step is not None
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    "challenge",
    [
        GOOD,
        GOOD + b',stale=true,maxbuf=65536,cipher="rc4,des",whatever="it, is"',
        b' REALM = "r" ,\r\n\tnonce="n" , Algorithm=MD5-sess, qop="auth-conf, AUTH" ',
        GOOD + b',realm="another"',
    ],
)
def test_a_challenge_that_will_do(challenge: bytes) -> None:
    answer = DigestMd5("ana", "s3cr3t").answer(challenge)
    assert b'realm="r"' in answer
    assert b'nonce="n"' in answer
    assert b"s3cr3t" not in answer


@pytest.mark.parametrize(
    "final", [b"", b"rspauth=", b"rspauth=0", b'rspauth=""', b"realm=x", b"\xff", b"rspauth=" + b"0" * 32]
)
def test_a_server_that_proves_nothing(final: bytes) -> None:
    login = DigestMd5("ana", "s3cr3t")
    for _ in range(2):
        with pytest.raises(StoreError, match="SASL login failed"):
            login.confirm(final)
        login.answer(GOOD)


def test_each_login_uses_a_number_of_its_own() -> None:
    answers = [DigestMd5("ana", "s3cr3t").answer(GOOD) for _ in range(9)]
    assert len({re.findall(rb'cnonce="([0-9a-f]{32})"', answer)[0] for answer in answers}) == 9


PARTS = st.sampled_from(
    [b'"', b"\\", b",", b"=", b"nonce", b"realm", b"n", b" ", b"algorithm=md5-sess", b"charset=utf-8", b"\xff"]
)


@pytest.mark.parametrize(
    "read", [lambda login, text: login.answer(text), lambda login, text: login.confirm(text)], ids=["answer", "confirm"]
)
@given(text=st.binary(max_size=4096) | st.lists(PARTS, max_size=40).map(b"".join))
def test_whatever_a_server_says(read: Callable[[DigestMd5, bytes], object], text: bytes) -> None:
    login = DigestMd5("ana", "s3cr3t")
    try:
        read(login, text)
    except DibsError as error:
        assert "s3cr3t" not in f"{error} {error!r}"
    assert "s3cr3t" not in repr(login)
