"""Logins, certificates and rights (cases 26 to 29): refused in time, with reason, and no secret shown. Tests that the
right login and authority get in show that nothing here is refused for another reason."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from kazoo.security import make_digest_acl

import dibs
import dibs.aio
from lab import splitters
from lab.faults import Cut, at_message
from lab.proxy import UP, Proxy
from lab.servers import certificates, ports, shared
from lab.servers.certificates import Certificates, Pair
from lab.servers.mariadb import NAME, MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server, until
from lab.servers.zookeeper import ZooKeeper
from lab.stopwatch import Stopwatch
from security.hostile import directory, is_said_well, planter
from security.test_urls import chain, printed
from store.redis.bad_peers import Bad, array, requests

# A peer that resets the connection before the handshake begins: Python's ssl module leaves its socket to the collector.
pytestmark = [
    pytest.mark.gate,
    pytest.mark.early,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"),
]
SECRET, OTHER = "s3cr3t", "0ther"
TIMEOUT = 1.0
AT_ONCE = 60.0
"""The timeout of a call that is refused for good: it must not wait for its end, however slow the machine is."""
FEW, SELDOM = 60, {"redis": 8, "zookeeper": 4}
"""Requests of a client that is refused, for all of its calls and its goodbye; and how many more a second."""
KEYS = "~* resetchannels &*"
USERS: dict[str, str] = {
    "nothing": f"{KEYS} -@all",
    "no_scripts": f"{KEYS} +@all -evalsha -eval",
    "no_commands_inside_of_scripts": f"{KEYS} +@all -hset -hdel",
    "no_keys": "resetkeys resetchannels &* +@all",
    "anothers_keys": "~other* resetchannels &* +@all",
    "keys_to_read": "%R~* resetchannels &* +@all",
    "no_subscription": f"{KEYS} +@all -subscribe",
    "no_channels": "~* resetchannels +@all",
    "no_messages": f"{KEYS} +@all -publish",
    "no_clock": f"{KEYS} +@all -time",
}
"""Each may do too little."""


class Place:
    """A server that speaks in clear, one that speaks TLS only, and how its store is told whom to believe."""

    def __init__(self, store: str, pems: Certificates, stack: ExitStack) -> None:
        self.store, self.pems = store, pems
        users = {user: f">{SECRET} {rules}" for user, rules in {**USERS, NAME: f"{KEYS} +@all"}.items()}
        plain, secure = {
            "redis": lambda: (Redis(users=users, password=OTHER * 3), Redis(tls=pems, password=SECRET)),
            "postgresql": lambda: (PostgreSQL(), PostgreSQL(tls=pems)),
            "mysql": lambda: (MariaDB(), MariaDB(tls=pems, insist=True)),
            "zookeeper": lambda: (ZooKeeper(), ZooKeeper(tls=pems, sasl={NAME: SECRET})),
        }[store]()
        self.plain, self.secure = (stack.enter_context(Server(kind)) for kind in (plain, secure))
        self.password = SECRET if store in ("redis", "zookeeper") else NAME
        self.checking = self.secure if store == "zookeeper" else self.plain
        """The server that checks passwords: ZooKeeper does so by SASL."""

    def login(self, password: str, user: str = NAME) -> tuple[str, dict[str, Any]]:
        options = {"auth": "sasl", **self.trusting()} if self.store == "zookeeper" else {}
        return self.checking.url(user=user, password=password), options

    def trusting(self, pair: Pair | None = None) -> dict[str, Any]:
        authority = (pair or self.pems.authority).certificate
        if self.store == "postgresql":
            return {"sslmode": "verify-full", "sslrootcert": str(authority)}
        return {"ca": authority}

    def by_tls(self, url: str) -> str:
        return re.sub("^(redis|zookeeper):", r"\1s:", url)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


PLACES = {"redis": "redis", "postgresql": "postgresql", "mysql": "mariadb", "zookeeper": "zookeeper"}


def grouped(*stores: str) -> list[Any]:
    """Each store's servers are started by one worker."""
    return [pytest.param(store, marks=pytest.mark.xdist_group(f"access-{store}")) for store in stores]


def on(*stores: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", grouped(*stores), indirect=True)


@pytest.fixture(scope="module", params=grouped(*PLACES))
def place(request: pytest.FixtureRequest, pems: Certificates) -> Iterator[Place]:
    require(PLACES[request.param])
    with ExitStack() as stack:
        yield Place(request.param, pems, stack)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ZooKeeper that knows users by digest."""
    return shared.fresh(tmp_path)


def with_login(url: str, password: str) -> str:
    return url.replace("://", f"://ana:{password}@")


def refused(url: str, timeout: float = AT_ONCE, **options: Any) -> dibs.DibsError:
    """The error that an acquire raises, in time; neither it nor its chain shows a password."""
    with dibs.connect(url, **options) as client:
        with Stopwatch() as watch, pytest.raises(dibs.DibsError) as caught:
            client.lock("a").acquire(timeout=timeout)
        assert watch.seconds() < (timeout / 2 if timeout == AT_ONCE else timeout + 5)
    error = caught.value
    assert is_said_well(error, url), str(error)
    seen = " ".join(f"{one!r} {one} {printed(one)}" for one in chain(error)) + repr(client)
    assert not [secret for secret in (SECRET, OTHER) if secret in seen]
    return error


def is_final(error: dibs.DibsError) -> bool:
    """Another try changes nothing."""
    return isinstance(error, dibs.StoreError) and not isinstance(error, dibs.StoreUnavailable)


def refused_for_good(url: str, **options: Any) -> dibs.DibsError | None:
    """On a busy machine the impostor itself may give up a handshake: None then."""
    error = refused(url, TIMEOUT, **options)
    return error if is_final(error) else None


def test_the_right_one_gets_in(place: Place) -> None:
    url, options = place.login(place.password)
    with dibs.connect(url, **options) as ana, ana.lock("a", timeout=30) as hold:
        hold.check()


def test_a_wrong_password(place: Place) -> None:
    for user in (NAME, "nobody", *([""] if place.store == "redis" else [])):
        url, options = place.login(OTHER, user)
        error = refused(url, **options)
        assert is_final(error)
        said = rf"{ports.HOST}:{place.checking.port}(: the server)? refuses the login[:.].* Next: check user"
        assert re.search(said, str(error)), error
        assert error.__cause__ is None or place.store != "mysql"


def test_a_wrong_password_by_digest_is_another_user(url: str) -> None:
    """ZooKeeper asks nobody whether a password is right: with another one somebody is somebody else."""
    with dibs.connect(with_login(url, SECRET)) as ana, ana.lock("a", timeout=30) as hold:
        error = refused(with_login(url, OTHER))
        assert is_final(error)
        assert "log in" in str(error)
        hold.check()


@on("redis", "postgresql", "mysql")
def test_no_password_where_one_is_wanted(place: Place) -> None:
    login = "" if place.store == "redis" else f"{NAME}@"
    end = {"redis": "", "postgresql": "/postgres", "mysql": f"/{NAME}"}[place.store]
    error = refused(f"{place.store}://{login}{ports.HOST}:{place.plain.port}{end}")
    assert is_final(error)
    assert f"{ports.HOST}:{place.plain.port}" in str(error)
    assert any(word in str(error) for word in ("refuses the login: ", "NOAUTH"))
    assert "Next: " in str(error)


@on("zookeeper")
def test_a_server_that_wants_another_login(place: Place) -> None:
    for login in ({}, {"user": "ana", "password": SECRET}):
        refused(place.secure.url(**login), TIMEOUT, **place.trusting())


def test_a_server_without_sasl(url: str) -> None:
    """It is not used without the login that was asked for."""
    assert isinstance(refused(with_login(url, SECRET), TIMEOUT, auth="sasl"), dibs.StoreError)


@on("postgresql", "mysql")
def test_a_database_that_does_not_exist(place: Place) -> None:
    assert is_final(refused(place.plain.url(database="nowhere")))


@on("redis", "postgresql", "mysql")
def test_tls_with_the_authority_that_is_named(place: Place) -> None:
    with dibs.connect(place.secure.url(), **place.trusting()) as client, client.lock("a", timeout=30) as hold:
        hold.check()


def test_an_authority_that_nobody_named(place: Place) -> None:
    """Ours is none of those that the system believes; libpq, with verify-full, must be told whom to believe."""
    if place.store == "postgresql":
        error = refused(place.secure.url(), **place.trusting(place.pems.self_signed))
        assert "certificate" in str(error)
        return
    error = refused(place.secure.url(), **({"tls": "on"} if place.store == "mysql" else {}))
    assert is_final(error)
    assert "ca=" in str(error)


class Impostor:
    """Shows its clients a certificate, or none; keeps the bytes sent to it after that, or in clear."""

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


@on("redis", "zookeeper")
@pytest.mark.parametrize("known", ["ca", "system"])
@pytest.mark.parametrize("case", ["self_signed", "wrong_host"])
def test_a_certificate_that_is_not_to_be_trusted(place: Place, case: str, known: str) -> None:
    options = place.trusting() if known == "ca" else {}
    with Impostor(getattr(place.pems, case)) as impostor:
        url = place.by_tls(f"{place.store}://ana:{SECRET}@{ports.HOST}:{impostor.port}")
        error = until(lambda: refused_for_good(url, **options), 60, "the handshake comes as far as the certificate")
        assert "certificate" in str(error)
        assert impostor.visits
        assert impostor.heard == b"", "nothing was said to it"


@on("mysql")
def test_a_certificate_of_another_authority_or_host(place: Place) -> None:
    other = refused(place.secure.url(password=SECRET), **place.trusting(place.pems.self_signed))
    with Server(MariaDB(tls=replace(place.pems, server=place.pems.wrong_host))) as elsewhere:
        wrong = refused(elsewhere.url(password=SECRET), **place.trusting())
    for error in (other, wrong):
        assert is_final(error)
        assert "certificate" in str(error)


@on("mysql")
@pytest.mark.parametrize("mode", ["lease", "session"])
def test_pairs_over_tls(place: Place, mode: str) -> None:
    """A reply is complete only when its whole TLS record has come: on the free path, and behind a waiter."""
    options = {"mode": mode, **place.trusting()}
    with dibs.connect(place.secure.url(), **options) as one, dibs.connect(place.secure.url(), **options) as other:
        tokens = []
        for _ in range(20):
            with one.lock("tls", timeout=60) as hold:
                tokens.append(hold.token)
        with one.lock("tls", timeout=60):
            assert other.lock("tls").acquire(timeout=0) is None

    async def pairs() -> None:
        async with dibs.aio.connect(place.secure.url(), **options) as client:
            for _ in range(20):
                async with client.lock("tls", timeout=60) as hold:
                    tokens.append(hold.token)

    asyncio.run(pairs())
    assert tokens == sorted(set(tokens))


def test_tls_to_a_server_that_speaks_in_clear(place: Place) -> None:
    """Nothing of the login is said there."""
    splitter = splitters.mysql if place.store == "mysql" else None
    with Proxy((ports.HOST, place.plain.port), splitter=splitter) as proxy:
        proxy.add(Cut(at_message(match=lambda text: NAME.encode() in text)), UP)
        url = place.by_tls(place.plain.url(user=NAME, password=SECRET)).replace(str(place.plain.port), str(proxy.port))
        refused(url, TIMEOUT, **place.trusting())
        said, _ = proxy.total(UP, "dropped")
        assert not said, "the login was on its way"


def test_no_tls_to_a_server_that_speaks_nothing_else(place: Place) -> None:
    off = {"postgresql": {"sslmode": "disable"}, "mysql": {"tls": "off"}}.get(place.store, {})
    timeout = AT_ONCE if place.store == "postgresql" else TIMEOUT
    error = refused(place.secure.url().replace("s://", "://"), timeout, **off)
    assert place.store != "postgresql" or "pg_hba.conf" in str(error)


@on("redis", "postgresql", "zookeeper")
def test_nothing_is_said_in_clear_where_tls_was_asked_for(place: Place) -> None:
    """libpq asks for TLS first, in clear; a peer that cannot prove to be the right one hears no more than that."""
    with Impostor(None) as impostor:
        end = "/app" if place.store == "postgresql" else ""
        url = place.by_tls(f"{place.store}://ana:{SECRET}@{ports.HOST}:{impostor.port}{end}")
        until(lambda: refused(url, TIMEOUT, **place.trusting()) and impostor.heard, 60, "it was spoken to")
        assert place.store == "postgresql" or impostor.heard[:1] == b"\x16", "a handshake"
        assert SECRET.encode() not in impostor.heard
        assert b"ana" not in impostor.heard


def sends_on_to(port: int) -> Callable[..., None]:
    """A sentinel, or a node of a cluster, that sends everybody to a port."""

    def manner(line: ssl.SSLSocket) -> None:
        for words in requests(line):
            match [word.upper() for word in words[:2]]:
                case [b"SENTINEL", b"MASTER"]:
                    line.sendall(array(b"ip", ports.HOST.encode(), b"port", b"%d" % port))
                case [b"SENTINEL", *_]:
                    line.sendall(b"*0\r\n")
                case [b"CLUSTER", *_]:
                    node = array(ports.HOST.encode(), port, b"x" * 40)
                    line.sendall(b"*1\r\n*3\r\n:0\r\n:16383\r\n" + node)
                case _:
                    line.sendall(b"+OK\r\n")

    return manner


@pytest.mark.xdist_group("access-redis")
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
@pytest.mark.parametrize("foreign", ["in clear", "self-signed"])
def test_an_address_that_is_foreign(pems: Certificates, kind: str, foreign: str) -> None:
    """A peer that tells us where the server is does not tell us whom to believe: the password is not said there. On a
    busy machine one try may end before it gets there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pems.server.certificate, pems.server.key)
    pair = None if foreign == "in clear" else pems.self_signed
    with Impostor(pair) as impostor, Bad(sends_on_to(impostor.port), context) as teller:
        there = f"rediss+{kind}://ana:{SECRET}@{teller.host}{'/main' if kind == 'sentinel' else ''}"

        def sent_there() -> bool:
            refused(there, TIMEOUT, ca=pems.authority.certificate)
            return bool(impostor.visits)

        until(sent_there, 60, "it is sent there")
        assert teller.calls
        assert SECRET.encode() not in impostor.heard
        assert impostor.heard[:1] in (b"\x16", b"")


def told(url: str, port: int, and_then: Callable[[], object] = lambda: None) -> list[dibs.DibsError]:
    """The errors that a user without rights gets: at once, with a next step, and without endless retries."""

    def once() -> None:
        if (hold := client.lock("a").acquire(timeout=0)) is not None:
            hold.release()

    def waiting() -> None:
        with client.lock("a", timeout=TIMEOUT):
            """Held, and given back."""

    store, errors = url.partition(":")[0], []
    splitter, step = {"redis": (splitters.resp, "dibs doctor"), "zookeeper": (splitters.zookeeper, "log in")}[store]
    with Proxy((ports.HOST, port), splitter=splitter) as proxy, Stopwatch() as watch:
        there = url.replace(f":{port}/", f":{proxy.port}/")
        with dibs.connect(there, lease=10) as client:
            for attempt in (once, waiting, lambda: client.inspect("a"), lambda: client.cell("a").set(b"1", 0)):
                try:
                    attempt()
                except dibs.DibsError as error:
                    errors.append(error)
            and_then()
        assert watch.seconds() < TIMEOUT + 10, "close() waits for 5 s where something cannot be given back"
        asked, _ = proxy.total(UP, "passed")
        assert asked < FEW + SELDOM[store] * watch.seconds(), "it asks on and on"
    for error in errors:
        assert is_final(error), error
        assert step in str(error), error
        assert is_said_well(error, there)
        assert SECRET not in str(error)
    return errors


@on("redis")
@pytest.mark.parametrize("user", USERS)
def test_a_user_without_the_rights(place: Place, user: str) -> None:
    """The databases: tests/store/test_first_use.py."""
    url = f"{place.plain.url(user=user, password=SECRET)}?prefix={user}:"
    assert told(url, place.plain.port), "none of these rights is enough"


RIGHTS: dict[str, dict[str, bool]] = {
    "none": {"admin": True},
    "to read": {"read": True},
    "to read and create": {"read": True, "create": True},
    "to create and delete": {"create": True, "delete": True},
    "to read, create and write": {"read": True, "create": True, "write": True},
}


@pytest.mark.parametrize("where", ["chroot", "namespace", "directory"])
@pytest.mark.parametrize("case", RIGHTS)
def test_a_user_without_the_rights_on_a_node(url: str, where: str, case: str) -> None:
    """Refused, or it needs no more, and holds and gives back."""
    acl = [make_digest_acl("root", OTHER, all=True), make_digest_acl("ana", SECRET, **RIGHTS[case])]

    def nothing_is_left() -> None:
        if "delete" in RIGHTS[case]:
            until(lambda: operator.children("a") == [], what="nothing of ours is left")

    with planter(url, f"root:{OTHER}") as operator:
        operator.client.ensure_path(directory("a"))
        operator.client.set_acls({"chroot": "/", "namespace": "/dibs", "directory": directory("a")}[where], acl)
        errors = told(with_login(url, SECRET), shared.zookeeper().port, nothing_is_left)
    assert errors or where != "directory", "none of these rights is enough there"
