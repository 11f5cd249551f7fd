"""Logins, certificates and rights on ZooKeeper (cases 26 to 29): refused in time, with reason, and no secret shown."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from kazoo.security import make_digest_acl

import dibs
from lab.proxy import UP, Proxy
from lab.servers import certificates, ports, shared
from lab.servers.certificates import Certificates, Pair
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.splitters import zookeeper as frames
from lab.stopwatch import Stopwatch
from process.children import until
from security.nodes import Planter, directory, planter
from security.planted import is_said_well
from security.test_urls import chain, printed

SECRET, OTHER = "s3cr3t", "0ther"
TIMEOUT = 1.0
AT_ONCE = 60.0
"""The timeout of a call that is refused for good: it must not wait for its end, however slow the machine is."""
FEW, SELDOM = 60, 4
"""Requests of a client that is refused, for all of its calls and its goodbye; and how many more a second."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared.fresh(tmp_path)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def secure(pems: Certificates) -> Iterator[Server]:
    """Speaks TLS, and lets in only whom it knows by SASL: ana."""
    require("zookeeper")
    with Server(ZooKeeper(tls=pems, sasl={"ana": SECRET})) as server:
        yield server


def with_login(url: str, password: str) -> str:
    return url.replace("://", f"://ana:{password}@")


def refused(url: str, *, timeout: float = TIMEOUT, **options: object) -> dibs.DibsError:
    """The error of an acquire, in time; neither it nor its causes show a password."""
    with dibs.connect(url, **options) as client:
        with Stopwatch() as watch, pytest.raises(dibs.DibsError) as caught:
            client.lock("a").acquire(timeout=timeout)
        assert watch.seconds() < (timeout / 2 if timeout == AT_ONCE else timeout + 5)
    error = caught.value
    assert is_said_well(error, url), str(error)
    seen = " ".join(f"{one!r} {one} {printed(one)}" for one in chain(error)) + repr(client)
    assert SECRET not in seen
    assert OTHER not in seen
    return error


def is_final(error: dibs.DibsError) -> bool:
    """Another try changes nothing."""
    return isinstance(error, dibs.StoreError) and not isinstance(error, dibs.StoreUnavailable)


def test_a_wrong_password_by_digest_is_another_user(url: str) -> None:
    """The server asks nobody whether a password is right: with another one somebody is somebody else."""
    with dibs.connect(with_login(url, SECRET)) as ana, ana.lock("a", timeout=30) as hold:
        error = refused(with_login(url, OTHER), timeout=AT_ONCE)
        assert is_final(error)
        assert "log in" in str(error)
        hold.check()


def test_a_wrong_password_by_sasl(secure: Server, pems: Certificates) -> None:
    error = refused(with_login(secure.url(), OTHER), timeout=AT_ONCE, auth="sasl", ca=pems.authority.certificate)
    assert is_final(error)
    assert f":{secure.port}: the server refuses the login. Next: check user and password" in str(error)


def test_the_right_one_gets_in(secure: Server, pems: Certificates) -> None:
    """What is refused here is not refused for another reason."""
    url = with_login(secure.url(), SECRET)
    with dibs.connect(url, auth="sasl", ca=pems.authority.certificate) as ana, ana.lock("a", timeout=30) as hold:
        hold.check()


@pytest.mark.parametrize("login", ["none", "digest"])
def test_a_server_that_wants_another_login(secure: Server, pems: Certificates, login: str) -> None:
    url = secure.url() if login == "none" else with_login(secure.url(), SECRET)
    refused(url, ca=pems.authority.certificate)


def test_a_server_without_sasl(url: str) -> None:
    """It is not used without the login that was asked for."""
    assert isinstance(refused(with_login(url, SECRET), auth="sasl"), dibs.StoreError)


class Impostor:
    """Whoever connects is shown a certificate, or none; what is said to it after that, or in clear, is kept."""

    def __init__(self, pair: Pair | None) -> None:
        self._context = None
        if pair is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(pair.certificate, pair.key)
        self._listener = socket.create_server((ports.HOST, 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.port: int = self._listener.getsockname()[1]
        self.heard = b""
        self.visits = 0

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self.visits += 1
            with contextlib.suppress(OSError), line:
                line.settimeout(10 * TIMEOUT)
                with line if self._context is None else self._context.wrap_socket(line, server_side=True) as talk:
                    self.heard += talk.recv(65536)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


IMPOSTORS: dict[str, Callable[[Certificates], Pair]] = {
    "self-signed": lambda pems: pems.self_signed,
    "another host's": lambda pems: pems.wrong_host,
}


@pytest.mark.parametrize("known", ["ca", "system"])
@pytest.mark.parametrize("case", IMPOSTORS)
def test_a_certificate_that_is_not_to_be_trusted(pems: Certificates, case: str, known: str) -> None:
    options = {"ca": pems.authority.certificate} if known == "ca" else {}
    with Impostor(IMPOSTORS[case](pems)) as impostor:
        error = refused(f"zookeepers://ana:{SECRET}@{ports.HOST}:{impostor.port}", timeout=AT_ONCE, **options)
        assert is_final(error)
        assert "certificate" in str(error)
        until(lambda: impostor.visits, what="a visit")
        assert impostor.heard == b"", "nothing was said to it"


def test_an_authority_that_nobody_named(secure: Server) -> None:
    """Ours is none of those that the system believes."""
    assert "ca=" in str(refused(with_login(secure.url(), SECRET), timeout=AT_ONCE, auth="sasl"))


def test_tls_to_a_server_that_speaks_in_clear(url: str) -> None:
    refused(with_login(url, SECRET).replace("zookeeper:", "zookeepers:"))


def test_nothing_is_said_in_clear_where_tls_was_asked_for() -> None:
    with Impostor(None) as impostor:
        refused(f"zookeepers://ana:{SECRET}@{ports.HOST}:{impostor.port}")
        until(lambda: impostor.heard, what="what was said to it")
        assert impostor.heard[:1] == b"\x16", "a handshake"
        assert SECRET.encode() not in impostor.heard
        assert b"ana" not in impostor.heard


def test_no_tls_to_a_server_that_speaks_nothing_else(secure: Server) -> None:
    refused(secure.url().replace("zookeepers:", "zookeeper:"))


RIGHTS: dict[str, dict[str, bool]] = {
    "none": {"admin": True},
    "to read": {"read": True},
    "to read and create": {"read": True, "create": True},
    "to create and delete": {"create": True, "delete": True},
    "to read, create and write": {"read": True, "create": True, "write": True},
}


@pytest.fixture
def operator(url: str) -> Iterator[Planter]:
    with planter(url, f"root:{OTHER}") as made:
        yield made


def tried(client: dibs.Client) -> list[dibs.DibsError]:
    """What a user without rights is told."""

    def once() -> None:
        if (hold := client.lock("a").acquire(timeout=0)) is not None:
            hold.release()

    def waiting() -> None:
        with client.lock("a", timeout=TIMEOUT):
            """Held, and given back."""

    found = []
    for attempt in (once, waiting, lambda: client.inspect("a"), lambda: client.cell("a").set(b"1", 0)):
        try:
            attempt()
        except dibs.DibsError as error:
            found.append(error)
    return found


@pytest.mark.parametrize("where", ["chroot", "namespace", "directory"])
@pytest.mark.parametrize("case", RIGHTS)
def test_a_user_without_the_rights(url: str, operator: Planter, where: str, case: str) -> None:
    """Told at once, with a next step, and without asking on and on; or it needs no more, and holds and gives back."""
    acl = [make_digest_acl("root", OTHER, all=True), make_digest_acl("ana", SECRET, **RIGHTS[case])]
    operator.client.ensure_path(directory("a"))
    operator.client.set_acls({"chroot": "/", "namespace": "/dibs", "directory": directory("a")}[where], acl)
    port = shared.zookeeper().port
    with Proxy((ports.HOST, port), splitter=frames) as proxy:
        there = with_login(url, SECRET).replace(f":{port}/", f":{proxy.port}/")
        begun = time.monotonic()
        with Stopwatch() as watch:
            with dibs.connect(there, lease=10) as client:
                errors = tried(client)
                if "delete" in RIGHTS[case]:
                    until(lambda: operator.children("a") == [], what="nothing of ours is left")
            assert watch.seconds() < TIMEOUT + 10, "close() waits for 5 s where something cannot be given back"
        took = time.monotonic() - begun
        asked, _ = proxy.total(UP, "passed")
    assert asked < FEW + SELDOM * took, "it asks on and on"
    for error in errors:
        assert is_final(error), error
        assert "log in" in str(error)
        assert is_said_well(error, there)
        assert SECRET not in str(error)
    if where == "directory":
        assert errors, "none of these rights is enough there"
