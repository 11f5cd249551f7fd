"""TLS as bytes: against Python's own server and OpenSSL's, with what certificates do to it.

ZooKeeper's own TLS is in tests/security/test_access.py.
"""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.wire.transport import Tls
from dibs.errors import StoreError, StoreUnavailable
from dibs.url import parse
from lab.servers import certificates, ports
from lab.servers.certificates import Certificates, Pair
from lab.servers.programs import ask, program, require
from lab.servers.supervisor import until

PATIENCE = 20.0
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
GOODBYE = b"goodbye"
Ours = Callable[..., ssl.SSLContext]


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def ours(pems: Certificates) -> Ours:
    """The context of a client, as an address makes it."""

    def made(**files: Path) -> ssl.SSLContext:
        context = Address(parse("zookeepers://h1"), **{"ca": pems.authority.certificate, **files}).tls
        assert context is not None
        return context

    return made


def theirs(pair: Pair, version: str = "1.3", known: Pair | None = None) -> ssl.SSLContext:
    """The context of a server; `known`: the authority without whose certificate no client gets in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.minimum_version = context.maximum_version = VERSIONS[version]
    if known is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(known.certificate)
    return context


class Echo:
    """A server that repeats what it hears, until GOODBYE, to one client after the other, on a thread of its own."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._listener = socket.create_server((ports.HOST, 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.port: int = self._listener.getsockname()[1]
        self.failures: list[str] = []
        """Why it let clients go, in OpenSSL's words."""

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                line, _ = self._listener.accept()
                with line:
                    line.settimeout(PATIENCE)
                    self._talk(line)

    def _talk(self, line: socket.socket) -> None:
        try:
            with self._context.wrap_socket(line, server_side=True) as tls:
                while part := tls.recv(65536):
                    if part == GOODBYE:
                        tls.unwrap()
                        return
                    tls.sendall(part)
        except OSError as error:
            self.failures.append(getattr(error, "reason", None) or str(error))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class SessionClient:
    """A channel on a real socket."""

    def __init__(self, port: int, channel: Tls, piece: int = 65536) -> None:
        self.channel = channel
        self._piece = piece
        """How many bytes the channel gets at once."""
        self._line = socket.create_connection((ports.HOST, port), timeout=PATIENCE)
        self._line.sendall(channel.begin())

    def shake(self) -> None:
        while not self.channel.ready:
            assert self.step() == b""

    def step(self) -> bytes:
        """One answer of the server; EOFError if it has hung up."""
        raw = self._line.recv(self._piece)
        if not raw:
            raise EOFError
        plain = self.channel.receive(raw)
        self._line.sendall(self.channel.outgoing())
        return plain

    def say(self, plain: bytes) -> None:
        self._line.sendall(self.channel.send(plain))

    def hear(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += self.step()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        with contextlib.suppress(OSError):
            self._line.sendall(self.channel.outgoing())
        self._line.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("host", "piece"), [("localhost", 65536), ("127.0.0.1", 1), ("localhost.", 65536)])
def test_there_and_back(version: str, host: str, piece: int, pems: Certificates, ours: Ours) -> None:
    """What is said before it is ready goes out then; the server's goodbye is silence."""
    channel = Tls(ours(), host)
    assert channel.send(b"one ") == b""
    with Echo(theirs(pems.server, version)) as server, SessionClient(server.port, channel, piece) as client:
        assert channel.send(b"two ") == b""
        assert channel.outgoing() == b""
        assert not channel.ready
        client.shake()
        client.say(b"three")
        assert client.hear(13) == b"one two three"
        plain = b"\x00" * (100 if piece == 1 else 100_000)
        client.say(plain)
        assert client.hear(len(plain)) == plain
        client.say(GOODBYE)
        assert client.step() == b""
        assert channel.receive(b"") == b""
        assert channel.ready


def test_a_goodbye_before_it_is_ready(ours: Ours) -> None:
    channel = Tls(ours(), "localhost")
    channel.begin()
    assert channel.receive(b"\x15\x03\x03\x00\x02\x01\x00") == b""  # the alert close_notify
    assert channel.send(b"anyone?") == b""
    assert not channel.ready


def distrust(server: Echo, channel: Tls) -> StoreError:
    """Why a channel refuses a server, which is told."""
    before = len(server.failures)
    with pytest.raises(StoreError) as caught, SessionClient(server.port, channel) as client:
        client.shake()
    assert not isinstance(caught.value, StoreUnavailable)
    assert not channel.ready
    assert caught.value.__suppress_context__
    until(lambda: len(server.failures) > before, what="the server has heard why")
    return caught.value


def expired(pems: Certificates, directory: Path) -> Pair:
    old = Pair(directory / "old.crt", pems.server.key, directory / "old.pem")
    request, copied = directory / "request.pem", ["-copy_extensions", "copyall"]
    ask(["openssl", "x509", "-x509toreq", "-in", pems.server.certificate, "-key", old.key, *copied, "-out", request])
    signer = ["-CA", pems.authority.certificate, "-CAkey", pems.authority.key, "-CAcreateserial"]
    ask(["openssl", "x509", "-req", "-in", request, *signer, *copied, "-days", "-1", "-out", old.certificate])
    return old


@pytest.mark.parametrize(
    ("pair", "host", "why", "step"),
    [
        (lambda pems, _: pems.self_signed, "localhost", "certificate of localhost cannot be trusted: self", "ca="),
        (
            lambda pems, _: pems.wrong_host,
            "localhost",
            "mismatch",
            "connect with a host name that is in the certificate",
        ),
        (
            lambda pems, _: pems.wrong_host,
            "127.0.0.1",
            "mismatch",
            "connect with a host name that is in the certificate",
        ),
        (expired, "localhost", "expired", "renew"),
    ],
    ids=["self-signed", "another name", "another address", "expired"],
)
def test_a_server_that_is_not_to_be_trusted(
    pair: Callable[[Certificates, Path], Pair],
    host: str,
    why: str,
    step: str,
    pems: Certificates,
    ours: Ours,
    tmp_path: Path,
) -> None:
    with Echo(theirs(pair(pems, tmp_path))) as server:
        error = distrust(server, Tls(ours(), host))
    assert why in error.what
    assert step in str(error.step)


def test_an_authority_that_we_do_not_know(pems: Certificates, ours: Ours) -> None:
    """Without ca= the system decides."""
    system = Address(parse("zookeepers://h1")).tls
    assert system is not None
    with Echo(theirs(pems.server, "1.2")) as server:
        for context in (ours(ca=pems.self_signed.certificate), system):
            error = distrust(server, Tls(context, "localhost"))
            assert "unable to get local issuer certificate" in str(error)
            assert "ca=" in str(error.step)
        assert server.failures == ["TLSV1_ALERT_UNKNOWN_CA"] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_wants_to_know_us(version: str, pems: Certificates, ours: Ours) -> None:
    with Echo(theirs(pems.server, version, known=pems.authority)) as server:
        known = ours(certificate=pems.client.certificate, key=pems.client.key)
        with SessionClient(server.port, Tls(known, "localhost")) as client:
            client.shake()
            client.say(b"ping")
            assert client.hear(4) == b"ping"
        stranger = ours(certificate=pems.self_signed.together)
        for context in (ours(), stranger):
            with SessionClient(server.port, Tls(context, "localhost")) as client, pytest.raises(StoreError) as caught:
                client.hear(1)
            if context is stranger or version == "1.3":
                assert "localhost does not accept our certificate" in str(caught.value)
                assert "certificate=" in str(caught.value.step)
            assert caught.value.__suppress_context__


def test_no_version_in_common(pems: Certificates, ours: Ours) -> None:
    context = ours()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with Echo(theirs(pems.server, "1.2")) as server, SessionClient(server.port, Tls(context, "localhost")) as client:
        with pytest.raises(StoreUnavailable, match=r"TLS with localhost failed: .*version") as caught:
            client.shake()
        assert caught.value.__suppress_context__


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x25" + bytes(37), b"\xff" * 64])
def test_a_server_that_does_not_speak_tls(said: bytes, ours: Ours) -> None:
    channel = Tls(ours(), "localhost")
    channel.begin()
    with pytest.raises(StoreUnavailable, match="TLS with localhost failed") as caught:
        channel.receive(said)
    assert "TLS port" in str(caught.value.step)


def first_flight(channel: Tls, context: ssl.SSLContext) -> bytes:
    """What a server says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(channel.begin())
    with contextlib.suppress(ssl.SSLWantReadError):
        server.do_handshake()
    return outgoing.read()


@settings(max_examples=30)
@given(noise=st.lists(st.binary(max_size=200), max_size=5), place=st.integers(0, 3000), byte=st.integers(1, 255))
def test_whatever_comes_in(noise: list[bytes], place: int, byte: int, pems: Certificates, ours: Ours) -> None:
    """Noise, or the true server that breaks off or has one wrong byte: refused or silence, never taken for it."""
    for spoilt in ("noise", "end", "byte"):
        channel = Tls(ours(), "localhost")
        flight = bytearray(first_flight(channel, theirs(pems.server)))
        end = place % len(flight) if spoilt == "end" else len(flight)
        if spoilt == "byte":
            flight[3 + place % (len(flight) - 3)] ^= byte  # the version at its very beginning means nothing any more
        heard = []
        try:
            heard = [channel.receive(part) for part in (noise if spoilt == "noise" else [bytes(flight[:end]), b""])]
        except StoreError as error:
            assert error.__suppress_context__
        assert not any(heard)
        assert not channel.ready


class OpenSsl:
    """OpenSSL's own server: on command it renews its keys or shakes hands anew, which Python's cannot."""

    def __init__(self, pair: Pair, version: str) -> None:
        self.port = ports.reserve()
        command = [program("openssl"), "s_server", "-accept", f"{ports.HOST}:{self.port}", "-naccept", "1"]
        files = ["-cert", str(pair.certificate), "-key", str(pair.key)]
        self._process = subprocess.Popen(
            [*command, *files, f"-tls{version.replace('.', '_')}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    def tell(self, line: str) -> None:
        """A command if it is one letter that means something to it; else it is said to the client."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def prints(self, text: str) -> None:
        assert self._process.stdout is not None
        assert any(text in line for line in iter(self._process.stdout.readline, "")), f"it ended without {text!r}"

    def __enter__(self) -> Self:
        self.prints("ACCEPT")
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.communicate()
        ports.release(self.port)


def test_keys_are_renewed(pems: Certificates, ours: Ours) -> None:
    with OpenSsl(pems.server, "1.3") as server, SessionClient(server.port, Tls(ours(), "localhost")) as client:
        client.shake()
        for number in range(3):
            client.say(b"before\n")
            server.prints("before")
            server.tell(f"hello {number}")
            assert client.hear(8) == b"hello %d\n" % number
            server.tell("K")  # new keys, and it wants new ones of ours
            assert client.step() == b""
            client.say(b"after\n")
            server.prints("after")


def test_hands_are_shaken_anew(pems: Certificates, ours: Ours) -> None:
    channel = Tls(ours(), "localhost")
    with OpenSsl(pems.server, "1.2") as server, SessionClient(server.port, channel) as client:
        client.shake()
        client.say(b"before\n")
        server.prints("before")
        server.tell("r")
        assert client.step() == b""
        assert channel.send(b"in between\n") == b""  # nothing can be said now
        while channel._kept:
            assert client.step() == b""
        server.prints("in between")
        server.tell("hello")
        assert client.hear(6) == b"hello\n"
