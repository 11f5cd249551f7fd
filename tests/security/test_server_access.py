"""Logins, certificates and rights on Redis, PostgreSQL and MariaDB (cases 26 to 29): refused in time, with reason, and
no secret shown. What is refused here is not refused for another reason: the right login and authority get in."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

import dibs
import dibs.aio
from lab import splitters
from lab.faults import Cut, at_message
from lab.proxy import UP, Proxy
from lab.servers import certificates, ports
from lab.servers.certificates import Certificates
from lab.servers.mariadb import NAME, MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server, until
from lab.stopwatch import Stopwatch
from security.planted import is_said_well
from security.test_access import IMPOSTORS, OTHER, SECRET, TIMEOUT, Impostor, is_final, tried
from security.test_urls import chain, printed
from store.redis.bad_peers import Bad, array, requests

# A peer that resets the connection before the handshake begins: Python's ssl module leaves its socket to the collector.
pytestmark = [
    pytest.mark.early,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"),
]
FEW, SELDOM = 60, 8
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
        plain, secure = {
            "redis": lambda: (
                Redis(
                    users={user: f">{SECRET} {rules}" for user, rules in {**USERS, NAME: f"{KEYS} +@all"}.items()},
                    password=OTHER * 3,
                ),
                Redis(tls=pems, password=SECRET),
            ),
            "postgresql": lambda: (PostgreSQL(), PostgreSQL(tls=pems)),
            "mysql": lambda: (MariaDB(), MariaDB(tls=pems, insist=True)),
        }[store]()
        self.plain, self.secure = (stack.enter_context(Server(kind)) for kind in (plain, secure))
        self.password = SECRET if store == "redis" else NAME

    def trusting(self, authority: Any) -> dict[str, Any]:
        if self.store == "postgresql":
            return {"sslmode": "verify-full", "sslrootcert": str(authority)}
        return {"ca": authority}

    def by_tls(self, url: str) -> str:
        return url.replace("redis:", "rediss:") if self.store == "redis" else url


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


PLACES = {"redis": "redis", "postgresql": "postgresql", "mysql": "mariadb"}


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


def refused(url: str, timeout: float = 60.0, **options: Any) -> dibs.DibsError:
    """What an acquire raises; neither it nor its chain shows a password. A refusal that is final comes long before the
    timeout, and one that is not comes with it."""
    with dibs.connect(url, **options) as client, pytest.raises(dibs.DibsError) as caught:
        client.lock("a").acquire(timeout=timeout)
    error = caught.value
    assert is_said_well(error, url), str(error)
    seen = " ".join(f"{one!r} {one} {printed(one)}" for one in chain(error)) + repr(client)
    assert not [secret for secret in (SECRET, OTHER) if secret in seen]
    return error


def refused_for_good(url: str, **options: Any) -> dibs.DibsError | None:
    """On a busy machine the impostor itself may give up a handshake: None then."""
    error = refused(url, TIMEOUT, **options)
    return error if is_final(error) else None


def test_the_right_one_gets_in(place: Place) -> None:
    with dibs.connect(place.plain.url(user=NAME, password=place.password)) as ana, ana.lock("a", timeout=30) as hold:
        hold.check()


def test_a_wrong_password(place: Place) -> None:
    for user in (NAME, "nobody", *([""] if place.store == "redis" else [])):
        error = refused(place.plain.url(user=user, password=OTHER))
        assert is_final(error)
        assert f"{ports.HOST}:{place.plain.port} refuses the login: " in str(error)
        assert "Next: check user" in str(error)
        assert error.__cause__ is None or place.store != "mysql"


def test_no_password_where_one_is_wanted(place: Place) -> None:
    login = "" if place.store == "redis" else f"{NAME}@"
    end = {"redis": "", "postgresql": "/postgres", "mysql": f"/{NAME}"}[place.store]
    error = refused(f"{place.store}://{login}{ports.HOST}:{place.plain.port}{end}")
    assert is_final(error)
    assert f"{ports.HOST}:{place.plain.port}" in str(error)
    assert any(word in str(error) for word in ("refuses the login: ", "NOAUTH"))
    assert "Next: " in str(error)


@on("postgresql", "mysql")
def test_a_database_that_does_not_exist(place: Place) -> None:
    assert is_final(refused(place.plain.url(database="nowhere")))


def test_tls_with_the_authority_that_is_named(place: Place) -> None:
    options = place.trusting(place.pems.authority.certificate)
    with dibs.connect(place.secure.url(), **options) as client, client.lock("a", timeout=30) as hold:
        hold.check()


def test_an_authority_that_nobody_named(place: Place) -> None:
    """Ours is none of those that the system believes; libpq, with verify-full, must be told whom to believe."""
    if place.store == "postgresql":
        error = refused(place.secure.url(), **place.trusting(place.pems.self_signed.certificate))
        assert "certificate" in str(error)
        return
    error = refused(place.secure.url(), **({"tls": "on"} if place.store == "mysql" else {}))
    assert is_final(error)
    assert "ca=" in str(error)


@on("redis")
@pytest.mark.parametrize("known", ["ca", "system"])
@pytest.mark.parametrize("case", IMPOSTORS)
def test_a_certificate_that_is_not_to_be_trusted(place: Place, case: str, known: str) -> None:
    options = place.trusting(place.pems.authority.certificate) if known == "ca" else {}
    with Impostor(IMPOSTORS[case](place.pems)) as impostor:
        url = f"rediss://ana:{SECRET}@{ports.HOST}:{impostor.port}"
        error = until(lambda: refused_for_good(url, **options), 60, "the handshake comes as far as the certificate")
        assert "certificate" in str(error)
        assert impostor.visits
        assert impostor.heard == b"", "nothing was said to it"


@on("mysql")
def test_a_certificate_of_another_authority_or_host(place: Place) -> None:
    other = refused(place.secure.url(password=SECRET), **place.trusting(place.pems.self_signed.certificate))
    with Server(MariaDB(tls=replace(place.pems, server=place.pems.wrong_host))) as elsewhere:
        wrong = refused(elsewhere.url(password=SECRET), **place.trusting(place.pems.authority.certificate))
    for error in (other, wrong):
        assert is_final(error)
        assert "certificate" in str(error)


@on("mysql")
@pytest.mark.parametrize("mode", ["lease", "session"])
def test_pairs_over_tls(place: Place, mode: str) -> None:
    """A reply is complete only when its whole TLS record has come: on the free path, and behind a waiter."""
    options = {"mode": mode, **place.trusting(place.pems.authority.certificate)}
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
        refused(url, TIMEOUT, **place.trusting(place.pems.authority.certificate))
        said, _ = proxy.total(UP, "dropped")
        assert not said, "the login was on its way"


def test_no_tls_to_a_server_that_speaks_nothing_else(place: Place) -> None:
    off = {"redis": {}, "postgresql": {"sslmode": "disable"}, "mysql": {"tls": "off"}}[place.store]
    timeout = 60.0 if place.store == "postgresql" else TIMEOUT
    error = refused(place.secure.url().replace("rediss:", "redis:"), timeout, **off)
    assert place.store != "postgresql" or "pg_hba.conf" in str(error)


@on("redis", "postgresql")
def test_nothing_is_said_in_clear_where_tls_was_asked_for(place: Place) -> None:
    """libpq asks for TLS first, in clear; a peer that cannot prove to be the right one hears no more than that."""
    scheme, end = ("rediss", "") if place.store == "redis" else ("postgresql", "/app")
    with Impostor(None) as impostor:
        url = f"{scheme}://ana:{SECRET}@{ports.HOST}:{impostor.port}{end}"
        options = place.trusting(place.pems.authority.certificate)
        until(lambda: refused(url, TIMEOUT, **options) and impostor.heard, 60, "it was spoken to")
        assert place.store != "redis" or impostor.heard[:1] == b"\x16", "a handshake"
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


@on("redis")
@pytest.mark.parametrize("user", USERS)
def test_a_user_without_the_rights(place: Place, user: str) -> None:
    """Told at once, with a next step, and without asking on and on. The databases: tests/store/test_first_use.py."""
    with Proxy((ports.HOST, place.plain.port), splitter=splitters.resp) as proxy, Stopwatch() as watch:
        there = place.plain.url(user=user, password=SECRET).replace(f":{place.plain.port}", f":{proxy.port}")
        with dibs.connect(f"{there}?prefix={user}:", lease=10) as client:
            errors = tried(client)
        asked, _ = proxy.total(UP, "passed")
        assert asked < FEW + SELDOM * watch.seconds(), "it asks on and on"
    assert errors, "none of these rights is enough"
    for error in errors:
        assert is_final(error), error
        assert "dibs doctor" in str(error), error
        assert SECRET not in str(error)
