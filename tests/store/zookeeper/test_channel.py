"""TLS as bytes, against Python's own server and OpenSSL's.

ZooKeeper's own TLS is in tests/security/test_access.py.
"""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.wire.transport import Tls
from dibs.errors import StoreError, StoreUnavailable
from dibs.url import parse
from lab.servers import ports
from lab.servers.certificates import Certificates, Pair
from lab.servers.programs import ask, program

PATIENCE = 60.0
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
both_versions = pytest.mark.parametrize("version", [pytest.param("1.2", marks=pytest.mark.gate), "1.3"])
Ours = Callable[..., ssl.SSLContext]


@pytest.fixture(scope="module")
def ours(pems: Certificates) -> Ours:
    """The context of a client, as an address makes it."""

    def made(**files: Path) -> ssl.SSLContext:
        context = Address(parse("zookeepers://h1"), **{"ca": pems.authority.certificate, **files}).tls
        assert context is not None
        return context

    return made


def theirs(pair: Pair, version: str = "1.3", known: Pair | None = None) -> ssl.SSLContext:
    """The context of a server; `known`: the authority whose certificate each client needs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.minimum_version = context.maximum_version = VERSIONS[version]
    if known is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(known.certificate)
    return context


class Peer:
    """Python's own TLS server, in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.received = b""
        self.failure = ""
        """The reason of OpenSSL."""

    def exchange(self, raw: bytes) -> bytes:
        """Receive these bytes; the bytes for the client."""
        self._in.write(raw)
        try:
            self._tls.do_handshake()
            while part := self._tls.read(65536):
                self.received += part
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.failure = str(error.reason)
        return self._out.read()

    def say(self, plain: bytes) -> bytes:
        self._tls.write(plain)
        return self._out.read()

    def close(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._out.read()


def talk(channel: Tls, peer: Peer, raw: bytes, piece: int = 65536) -> bytes:
    """Pass `raw` to the peer, and bytes both ways until there are none; the plain bytes that the channel received."""
    plain = b""
    while raw:
        reply = peer.exchange(raw)
        for at in range(0, len(reply), piece):
            plain += channel.receive(reply[at : at + piece])
        raw = channel.outgoing()
    return plain


@both_versions
def test_both_ways(version: str, pems: Certificates, ours: Ours) -> None:
    """Data that is sent during the handshake goes out after it. After the server's close_notify nothing is received."""
    for host, piece in (("localhost.", 65536), ("127.0.0.1", 1)):
        channel, peer = Tls(ours(), host), Peer(theirs(pems.server, version))
        assert channel.send(b"one ") == b""
        hello = channel.begin()
        assert channel.send(b"two ") == channel.outgoing() == b""
        assert not channel.ready
        assert talk(channel, peer, hello, piece) == b""
        assert channel.ready
        talk(channel, peer, channel.send(b"three"), piece)
        assert peer.received == b"one two three"
        plain = b"\x00" * 100_000
        talk(channel, peer, channel.send(plain))
        assert peer.received == b"one two three" + plain
        assert channel.receive(peer.say(plain)) == plain
        assert channel.receive(peer.close()) == channel.receive(b"") == b""
        assert channel.ready


def test_a_goodbye_before_it_is_ready(ours: Ours) -> None:
    channel = Tls(ours(), "localhost")
    channel.begin()
    assert channel.receive(b"\x15\x03\x03\x00\x02\x01\x00") == b""  # the alert close_notify
    assert channel.send(b"anyone?") == b""
    assert not channel.ready


def expired(pems: Certificates, directory: Path) -> Pair:
    old = Pair(directory / "old.crt", pems.server.key, directory / "old.pem")
    request, copied = directory / "request.pem", ["-copy_extensions", "copyall"]
    ask(["openssl", "x509", "-x509toreq", "-in", pems.server.certificate, "-key", old.key, *copied, "-out", request])
    signer = ["-CA", pems.authority.certificate, "-CAkey", pems.authority.key, "-CAcreateserial"]
    ask(["openssl", "x509", "-req", "-in", request, *signer, *copied, "-days", "-1", "-out", old.certificate])
    return old


def test_a_certificate_that_cannot_be_trusted(pems: Certificates, ours: Ours, tmp_path: Path) -> None:
    for pair, host, why, fix in (
        (pems.self_signed, "localhost", "certificate of localhost cannot be trusted: self", "ca="),
        (pems.wrong_host, "localhost", "mismatch", "connect with a host name that is in the certificate"),
        (pems.wrong_host, "127.0.0.1", "mismatch", "connect with a host name that is in the certificate"),
        (expired(pems, tmp_path), "localhost", "expired", "renew"),
    ):
        channel, peer = Tls(ours(), host), Peer(theirs(pair))
        with pytest.raises(StoreError) as caught:
            talk(channel, peer, channel.begin())
        assert not isinstance(caught.value, StoreUnavailable)
        assert not channel.ready
        assert caught.value.__suppress_context__
        assert why in caught.value.what
        assert fix in str(caught.value.step)
        peer.exchange(channel.outgoing())
        assert peer.failure, "the server received the alert"


@both_versions
def test_a_server_that_requires_a_certificate(version: str, pems: Certificates, ours: Ours) -> None:
    context = theirs(pems.server, version, known=pems.authority)
    known = ours(certificate=pems.client.certificate, key=pems.client.key)
    channel, peer = Tls(known, "localhost"), Peer(context)
    talk(channel, peer, channel.begin())
    talk(channel, peer, channel.send(b"ping"))
    assert peer.received == b"ping"
    stranger = ours(certificate=pems.self_signed.together)
    for refused in (ours(), stranger):
        channel = Tls(refused, "localhost")
        with pytest.raises(StoreError) as caught:
            talk(channel, Peer(context), channel.begin())
        if refused is stranger or version == "1.3":
            assert "localhost does not accept our certificate" in str(caught.value)
            assert "certificate=" in str(caught.value.step)
        assert caught.value.__suppress_context__


def test_no_version_in_common(pems: Certificates, ours: Ours) -> None:
    context = ours()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    channel = Tls(context, "localhost")
    with pytest.raises(StoreUnavailable, match=r"TLS with localhost failed: .*version") as caught:
        talk(channel, Peer(theirs(pems.server, "1.2")), channel.begin())
    assert caught.value.__suppress_context__


def test_a_server_that_does_not_speak_tls(ours: Ours) -> None:
    for reply in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x25" + bytes(37), b"\xff" * 64):
        channel = Tls(ours(), "localhost")
        channel.begin()
        with pytest.raises(StoreUnavailable, match="TLS with localhost failed") as caught:
            channel.receive(reply)
        assert "TLS port" in str(caught.value.step)


@settings(max_examples=30)
@given(noise=st.lists(st.binary(max_size=200), max_size=5), place=st.integers(0, 3000), byte=st.integers(1, 255))
def test_any_bytes_give_an_error_or_no_data(
    noise: list[bytes], place: int, byte: int, pems: Certificates, ours: Ours
) -> None:
    """Noise, or a server's first flight that is cut or has one wrong byte, gives an error or no data."""
    for spoilt in ("noise", "end", "byte"):
        channel = Tls(ours(), "localhost")
        flight = bytearray(Peer(theirs(pems.server)).exchange(channel.begin()))
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


@pytest.fixture
def s_server(pems: Certificates) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """OpenSSL's own server of TLS 1.2, and its port: on command it renegotiates, which Python's cannot."""
    port = ports.reserve()
    accept = ["-accept", f"{ports.HOST}:{port}", "-naccept", "1", "-tls1_2"]
    command = [program("openssl"), "s_server", *accept, "-cert", pems.server.certificate, "-key", pems.server.key]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, **pipes, text=True, bufsize=1)  # type: ignore[call-overload]
    yield port, process
    process.kill()
    process.communicate()
    ports.release(port)


@pytest.mark.gate
def test_renegotiation(s_server: tuple[int, subprocess.Popen[str]], ours: Ours) -> None:
    port, process = s_server
    assert process.stdin is not None
    assert process.stdout is not None

    def printed(text: str) -> bool:
        return any(text in line for line in iter(process.stdout.readline, ""))

    def step() -> bytes:
        plain = channel.receive(line.recv(65536))
        line.sendall(channel.outgoing())
        return plain

    assert printed("ACCEPT")
    channel = Tls(ours(), "localhost")
    with socket.create_connection((ports.HOST, port), timeout=PATIENCE) as line:
        line.sendall(channel.begin())
        while not channel.ready:
            step()
        line.sendall(channel.send(b"before\n"))
        assert printed("before")
        process.stdin.write("r\n")
        assert step() == b""
        assert channel.send(b"in between\n") == b""  # nothing can be sent now
        while channel._kept:
            assert step() == b""
        assert printed("in between")
        process.stdin.write("hello\n")
        assert step() == b"hello\n"
