"""Logins, certificates and rights on Redis (cases 26 to 29): refused in time, with reason, and no secret shown."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator

import pytest

import dibs
from lab import splitters
from lab.proxy import UP, Proxy
from lab.servers import certificates, ports
from lab.servers.certificates import Certificates
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from security.test_access import IMPOSTORS, IN_TIME, OTHER, SECRET, Impostor, is_final, refused, tried
from store.redis.bad_peers import Bad, array, requests

# A peer that resets the connection before the handshake begins: Python's ssl module leaves its socket to the collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)
FEW, SELDOM = 60, 8
"""Requests of a client that is refused, for all of its calls and its goodbye; and how many more a second."""
KEYS = "~* resetchannels &*"
USERS: dict[str, str] = {
    "nothing": f"{KEYS} -@all",
    "no scripts": f"{KEYS} +@all -evalsha -eval",
    "no commands inside of scripts": f"{KEYS} +@all -hset -hdel",
    "no keys": "resetkeys resetchannels &* +@all",
    "another's keys": "~other* resetchannels &* +@all",
    "keys to read": "%R~* resetchannels &* +@all",
    "no subscription": f"{KEYS} +@all -subscribe",
    "no channels": "~* resetchannels +@all",
    "no messages": f"{KEYS} +@all -publish",
    "no clock": f"{KEYS} +@all -time",
}


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


def users() -> dict[str, str]:
    """Each may do too little; ana may do everything."""
    given = {name.replace(" ", "_").replace("'", ""): rules for name, rules in USERS.items()}
    return {name: f">{SECRET} {rules}" for name, rules in {"ana": f"{KEYS} +@all", **given}.items()}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("redis")
    with Server(Redis(users=users(), password=OTHER * 3)) as made:
        yield made


@pytest.fixture(scope="module")
def secure(pems: Certificates) -> Iterator[Server]:
    require("redis")
    with Server(Redis(tls=pems, password=SECRET)) as made:
        yield made


def url_of(server: Server, user: str, password: str = SECRET) -> str:
    return server.url(user=user, password=password)


@pytest.mark.parametrize("user", ["ana", "nobody", ""])
def test_a_wrong_password(server: Server, user: str) -> None:
    error = refused(url_of(server, user, OTHER))
    assert is_final(error)
    assert "login" in str(error)
    assert "password" in str(error)


def test_no_password_where_one_is_wanted(server: Server) -> None:
    error = refused(f"redis://{ports.HOST}:{server.port}")
    assert is_final(error)
    assert "login" in str(error) or "NOAUTH" in str(error)


def test_the_right_one_gets_in(server: Server) -> None:
    """What is refused here is not refused for another reason."""
    with dibs.connect(url_of(server, "ana")) as ana, ana.lock("a", timeout=10) as hold:
        hold.check()


@pytest.mark.parametrize("known", ["ca", "system"])
@pytest.mark.parametrize("case", IMPOSTORS)
def test_a_certificate_that_is_not_to_be_trusted(pems: Certificates, case: str, known: str) -> None:
    options = {"ca": pems.authority.certificate} if known == "ca" else {}
    with Impostor(IMPOSTORS[case](pems)) as impostor:
        error = refused(f"rediss://ana:{SECRET}@{ports.HOST}:{impostor.port}", **options)
        assert is_final(error)
        assert "certificate" in str(error)
        assert impostor.visits
        assert impostor.heard == b"", "nothing was said to it"


def test_an_authority_that_nobody_named(secure: Server) -> None:
    """Ours is none of those that the system believes."""
    assert "ca=" in str(refused(secure.url()))


def test_tls_with_the_authority_that_is_named(secure: Server, pems: Certificates) -> None:
    with dibs.connect(secure.url(), ca=pems.authority.certificate) as client, client.lock("a", timeout=10) as hold:
        hold.check()


def test_tls_to_a_server_that_speaks_in_clear(server: Server) -> None:
    refused(url_of(server, "ana").replace("redis:", "rediss:"))


def test_nothing_is_said_in_clear_where_tls_was_asked_for() -> None:
    with Impostor(None) as impostor:
        refused(f"rediss://ana:{SECRET}@{ports.HOST}:{impostor.port}")
        assert impostor.heard[:1] == b"\x16", "a handshake"
        assert SECRET.encode() not in impostor.heard
        assert b"ana" not in impostor.heard


def test_no_tls_to_a_server_that_speaks_nothing_else(secure: Server) -> None:
    refused(secure.url().replace("rediss:", "redis:"))


def sends_on_to(port: int) -> Callable[..., None]:
    """A sentinel, or a node of a cluster, that sends everybody to a port."""

    def manner(line: ssl.SSLSocket) -> None:
        for words in requests(line):
            match [word.upper() for word in words[:2]]:
                case [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME"]:
                    line.sendall(array(ports.HOST.encode(), b"%d" % port))
                case [b"SENTINEL", *_]:
                    line.sendall(b"*0\r\n")
                case [b"CLUSTER", *_]:
                    node = array(ports.HOST.encode(), port, b"x" * 40)
                    line.sendall(b"*1\r\n*3\r\n:0\r\n:16383\r\n" + node)
                case _:
                    line.sendall(b"+OK\r\n")

    return manner


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
@pytest.mark.parametrize("foreign", ["in clear", "self-signed"])
def test_an_address_that_is_foreign(pems: Certificates, kind: str, foreign: str) -> None:
    """Who tells us where the server is does not tell us whom to believe: the password is not said there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pems.server.certificate, pems.server.key)
    pair = None if foreign == "in clear" else pems.self_signed
    with Impostor(pair) as impostor, Bad(sends_on_to(impostor.port), context) as teller:
        path = "/main" if kind == "sentinel" else ""
        there = f"rediss+{kind}://ana:{SECRET}@{teller.host}{path}"
        refused(there, ca=pems.authority.certificate)
        assert teller.calls
        assert impostor.visits, "it was not sent there"
        assert SECRET.encode() not in impostor.heard
        assert impostor.heard[:1] in (b"\x16", b"")


@pytest.mark.parametrize("case", USERS)
def test_a_user_without_the_rights(server: Server, case: str) -> None:
    """Told at once, with a next step, and without asking on and on."""
    user = case.replace(" ", "_").replace("'", "")
    with Proxy((ports.HOST, server.port), splitter=splitters.resp) as proxy:
        there = url_of(server, user).replace(f":{server.port}", f":{proxy.port}") + f"?prefix={user}:"
        begun = time.monotonic()
        with dibs.connect(there, lease=10) as client:
            errors = tried(client)
        took = time.monotonic() - begun
        asked, _ = proxy.total(UP, "passed")
    assert took < 4 * IN_TIME
    assert asked < FEW + SELDOM * took, "it asks on and on"
    assert errors, "none of these rights is enough"
    for error in errors:
        assert is_final(error), error
        assert "dibs doctor" in str(error), error
        assert SECRET not in str(error)
