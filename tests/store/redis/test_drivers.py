"""An existing driver of redis-py, of either face: its settings are honoured, on real servers; what cannot be honoured
is refused by name; and nothing of it is shown that should not be."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import ConstantBackoff
from redis.connection import Connection
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

import dibs
import dibs.aio
from dibs.backends.redis.address import Address
from dibs.backends.redis.asking import ask
from dibs.backends.redis.where import where
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import boottime
from lab.servers import certificates, ports
from lab.servers.certificates import Certificates
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.redis_groups import Group, cluster, replicated
from lab.servers.supervisor import Server

pytestmark = pytest.mark.timeout(150)  # groups of servers, on a machine that others use too
PATIENCE = 10.0
BOTH = pytest.mark.parametrize("module", [redis, redis.asyncio], ids=["blocking", "asyncio"])
PASSWORD = "open-sesame"


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    require("redis", "openssl")


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.make(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("s") / "r.sock"
    with Server(Redis(f"unixsocket {path}", users={"ana": ">pw-of-ana ~* &* +@all"})) as made:
        made.path = path  # type: ignore[attr-defined]  # for the tests below
        yield made


@pytest.fixture(scope="module")
def secured(pems: Certificates) -> Iterator[Server]:
    with Server(Redis(tls=pems, client_certificates=True)) as made:
        yield made


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    with replicated(replicas=1, sentinels=1, password=PASSWORD) as made:
        yield made


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Server, ...]]:
    with cluster() as made:
        yield made


def seen(address: Address) -> dict[str, str]:
    """How the server sees a connection that was made so."""
    answer: bytes = ask(address.connection(address.places[0], PATIENCE), "CLIENT", "INFO")
    return dict(word.split("=", 1) for word in answer.decode().split())


def close(driver: Any) -> None:
    """What it has open of its own: nothing, where it was given to dibs only."""
    closing = driver.aclose() if hasattr(driver, "aclose") else driver.close()
    if isinstance(closing, Awaitable):
        asyncio.run(_wait(closing))


async def _wait(what: Awaitable[object]) -> None:
    await what


@BOTH
def test_login_database_and_name(module: Any, server: Server) -> None:
    driver = module.Redis(
        host="localhost", port=server.port, db=3, username="ana", password="pw-of-ana", client_name="shop"
    )
    address = Address.of_driver(driver)
    assert (address.topology, address.places) == ("single", (("localhost", server.port),))
    facts = seen(address)
    assert (facts["user"], facts["db"], facts["name"]) == ("ana", "3", "shop")
    assert f"{address!r}" == f"<Address redis://localhost:{server.port}/3>"


@BOTH
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_socket_a_url_and_the_protocol(module: Any, protocol: int, server: Any) -> None:
    for driver in (
        module.Redis(unix_socket_path=str(server.path), db=1, protocol=protocol),
        module.Redis.from_url(f"unix://{server.path}?db=1", protocol=protocol),
        module.Redis(connection_pool=module.ConnectionPool.from_url(f"unix://{server.path}?db=1", protocol=protocol)),
        module.ConnectionPool.from_url(f"unix://{server.path}?db=1", protocol=protocol),
    ):
        address = Address.of_driver(driver)
        assert (address.places, address.shown) == ((str(server.path),), f"unix://{server.path}")
        facts = seen(address)
        assert (facts["db"], facts["resp"]) == ("1", str(protocol))


@BOTH
def test_credentials_that_are_provided(module: Any, server: Server) -> None:
    provider = UsernamePasswordCredentialProvider("ana", "pw-of-ana")
    address = Address.of_driver(module.Redis(port=server.port, credential_provider=provider))
    assert seen(address)["user"] == "ana"


@BOTH
def test_tls_settings(module: Any, secured: Server, pems: Certificates) -> None:
    shown = {
        "ssl_ca_certs": str(pems.authority.certificate),
        "ssl_certfile": str(pems.client.certificate),
        "ssl_keyfile": str(pems.client.key),
    }
    for driver in (
        module.Redis(port=secured.port, ssl=True, **shown),
        module.Redis.from_url(f"rediss://localhost:{secured.port}", **shown),
    ):
        address = Address.of_driver(driver)
        assert address.shown == f"rediss://localhost:{secured.port}/0"
        assert ask(address.connection(address.places[0], PATIENCE), "PING") == b"PONG"
    stranger = Address.of_driver(module.Redis(port=secured.port, ssl=True))
    with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(stranger.connection(stranger.places[0], PATIENCE), "PING")


@BOTH
def test_what_is_deliberately_not_taken(module: Any, server: Server) -> None:
    """Time-outs, retries, health checks and decoding are ours."""
    driver = module.Redis(
        port=server.port, socket_timeout=1e-9, retry=Retry(ConstantBackoff(1), 10), health_check_interval=1,
        decode_responses=True, max_connections=1, encoding="utf-16",
    )  # fmt: skip
    address = Address.of_driver(driver)
    made = address.connection(address.places[0], PATIENCE)
    assert (made.socket_timeout, made.retry.get_retries(), made.health_check_interval) == (PATIENCE, 0, 0)
    assert ask(made, "PING") == b"PONG"


@BOTH
def test_keep_alive_is_taken(module: Any, server: Server) -> None:
    driver = module.Redis(port=server.port, socket_keepalive=True, socket_keepalive_options={socket.TCP_KEEPIDLE: 77})
    address = Address.of_driver(driver)
    made: Any = address.connection(address.places[0], PATIENCE)
    made.connect()
    try:
        assert made._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
    finally:
        made.disconnect()


def test_a_function_of_the_users_logs_in(server: Server) -> None:
    def log_in(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("AUTH", "ana", "pw-of-ana")
        connection.read_response()

    assert seen(Address.of_driver(redis.Redis(port=server.port, redis_connect_func=log_in)))["user"] == "ana"


class Theirs(Connection):
    pass


class OnlyAwaited(CredentialProvider):
    async def get_credentials_async(self) -> tuple[str]:
        return ("s3cr3t",)


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: redis.ConnectionPool(Theirs, password="s3cr3t"), TypeError, "its connection class"),
    (lambda: redis.Redis(connection_pool=redis.ConnectionPool(Theirs)), TypeError, "Theirs: give a URL"),
    (lambda: redis.asyncio.Redis(redis_connect_func=lambda _: None), TypeError, "redis_connect_func of an asyncio"),
    (lambda: redis.asyncio.Redis(credential_provider=OnlyAwaited()), TypeError, "OnlyAwaited has no get_credentials"),
    (lambda: Sentinel([("h1", 26379)], password="s3cr3t"), TypeError, "give what its master_for(service) gives"),
    (lambda: AsyncSentinel([("h1", 26379)]), TypeError, "give what its master_for(service) gives"),
    (lambda: Sentinel([("h1", 26379)], password="s3cr3t").slave_for("main"), ValueError, "use master_for(service)"),
    (lambda: Sentinel([]).master_for("main"), ValueError, "no sentinels to ask"),
    (lambda: socket, TypeError, "must be a str, or a driver (psycopg_pool.pool.ConnectionPool, "),
    (lambda: socket, TypeError, "redis.asyncio.client.Redis, redis.asyncio.cluster.RedisCluster, "),
    (lambda: 5, TypeError, "not int"),
]  # fmt: skip


@pytest.mark.parametrize("face", [dibs, dibs.aio], ids=["blocking", "asyncio"])
@pytest.mark.parametrize(("make", "kind", "why"), REFUSED)
def test_what_cannot_be_honoured(face: Any, make: Callable[[], Any], kind: type[Exception], why: str) -> None:
    with pytest.raises(kind) as caught:
        face.connect(make())
    assert why in str(caught.value)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


def test_a_class_of_the_users_own_will_do() -> None:
    class Ours(redis.Redis):
        pass

    with dibs.connect(Ours(host="h1")) as client:
        assert "redis://h1:6379/0" in repr(client)


def test_options_beside_a_driver() -> None:
    address = Address.of_driver(redis.Redis(), replicas=1, wake="spin")
    assert (address.replicas, address.wake) == (1, "spin")
    for option in ("db", "ca", "password", "sentinel_password"):
        with pytest.raises(TypeError, match=f"no store option '{option}'; there are"):
            Address.of_driver(redis.Redis(), **{option: "s3cr3t"})


@BOTH
def test_nothing_secret_is_shown(module: Any) -> None:
    driver = module.Redis(host="h1", username="ana", password="s3cr3t", ssl=True, ssl_password="s3cr3t")
    client = dibs.connect(driver)
    try:
        said = f"{client!r} {client} {Address.of_driver(driver)!r} {vars(Address.of_driver(driver))}"
        assert "rediss://h1:6379/0" in said
        assert "s3cr3t" not in said
    finally:
        client.close()


# Sentinel


@pytest.mark.parametrize("kind", [Sentinel, AsyncSentinel], ids=["blocking", "asyncio"])
def test_a_service_of_a_sentinel(kind: Any, group: Group) -> None:
    manager = kind([(ports.HOST, group.sentinels[0].port)], password=PASSWORD, db=2, sentinel_kwargs={"db": 0})
    driver = manager.master_for("main", client_name="shop")
    for given in (driver, driver.connection_pool):
        address = Address.of_driver(given)
        assert address.shown == f"redis+sentinel://{ports.HOST}:{group.sentinels[0].port}/main/2"
        found = where(address, boottime)
        found.learn(boottime() + PATIENCE)
        place = found.locate(b"a")
        assert place == (ports.HOST, group.primary.port)
        answer = ask(address.connection(place, PATIENCE), "CLIENT", "INFO").decode()
        assert " name=shop " in answer
        assert " db=2 " in answer


def test_a_sentinel_must_see_as_many_others_as_the_driver_says(group: Group) -> None:
    manager = Sentinel([(ports.HOST, group.sentinels[0].port)], min_other_sentinels=1, password=PASSWORD)
    found = where(Address.of_driver(manager.master_for("main")), boottime)
    with pytest.raises(StoreUnavailable, match="sees 0 other sentinels, of the 1 that it should"):
        found.learn(boottime() + PATIENCE)


def test_the_address_that_the_driver_forces(group: Group) -> None:
    manager = Sentinel([(ports.HOST, group.sentinels[0].port)], force_master_ip="localhost", password=PASSWORD)
    found = where(Address.of_driver(manager.master_for("main")), boottime)
    found.learn(boottime() + PATIENCE)
    assert found.locate(b"a") == ("localhost", group.primary.port)


def test_a_pool_of_a_sentinel(group: Group) -> None:
    manager = Sentinel([(ports.HOST, group.sentinels[0].port)])
    pool = SentinelConnectionPool("main", manager, password=PASSWORD)
    found = where(Address.of_driver(pool), boottime)
    found.learn(boottime() + PATIENCE)
    assert found.locate(b"a") == (ports.HOST, group.primary.port)


# Cluster


@pytest.fixture(params=["blocking", "asyncio"])
def cluster_driver(request: pytest.FixtureRequest, nodes: tuple[Server, ...]) -> Iterator[Callable[..., Any]]:
    """Makes one; the blocking one asks the cluster when it is made."""
    made: list[Any] = []

    def make(**settings: Any) -> Any:
        module: Any = redis if request.param == "blocking" else redis.asyncio
        made.append(module.RedisCluster(host=ports.HOST, port=nodes[0].port, **settings))
        return made[-1]

    yield make
    for driver in made:
        close(driver)


def test_a_cluster(cluster_driver: Callable[..., Any], nodes: tuple[Server, ...]) -> None:
    address = Address.of_driver(cluster_driver(client_name="shop", protocol=3))
    assert (address.topology, (ports.HOST, nodes[0].port) in address.places) == ("cluster", True)
    assert address.shown.startswith("redis+cluster://127.0.0.1:")
    found = where(address, boottime)
    found.learn(boottime() + PATIENCE)
    assert len(found.all()) == 3
    place = found.locate(b"a")
    assert place is not None
    answer = ask(address.connection(place, PATIENCE), "CLIENT", "INFO").decode()
    assert " name=shop " in answer
    assert " resp=3" in answer


def test_the_ways_that_the_driver_knows(cluster_driver: Callable[..., Any]) -> None:
    found = where(Address.of_driver(cluster_driver(address_remap=lambda place: ("localhost", place[1]))), boottime)
    found.learn(boottime() + PATIENCE)
    assert {place[0] for place in found.all()} == {"localhost"}
    assert found.reached(("10.0.0.1", 7), ("localhost", 1)) == ("localhost", 7)


def test_a_function_of_the_users_in_a_cluster(nodes: tuple[Server, ...]) -> None:
    called: list[Any] = []
    with redis.RedisCluster(host=ports.HOST, port=nodes[0].port, redis_connect_func=called.append) as driver:
        address = Address.of_driver(driver)
        called.clear()
        made = address.connection(address.places[0], PATIENCE)
        assert ask(made, "PING") == b"PONG"
        assert called == [made]


# Both faces, and the way to a store


@BOTH
@pytest.mark.parametrize("face", [dibs, dibs.aio], ids=["blocking", "asyncio"])
def test_either_face_takes_either_driver(face: Any, module: Any, server: Server) -> None:
    async def awaited() -> int:
        async with dibs.aio.connect(driver) as client, client.lock("a", timeout=20) as hold:
            return hold.token

    driver = module.Redis(port=server.port, decode_responses=True)
    if face is dibs.aio:
        assert asyncio.run(awaited()) > 0
    else:
        with dibs.connect(driver) as client, client.lock("a", timeout=20) as hold:
            assert hold.token > 0


@pytest.mark.parametrize("missing", ["redis", "hiredis"])
@pytest.mark.parametrize(
    "url", ["redis://h1", "rediss://h1", "unix:///a", "redis+sentinel://h1/m", "rediss+cluster://h1"]
)
def test_a_missing_driver_names_the_extra(missing: str, url: str) -> None:
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "import dibs\n"
        "try:\n"
        f"    dibs.connect({url!r})\n"
        "except dibs.MissingDriver as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip().endswith("Next: pip install 'dibs[redis]'"), done.stdout + done.stderr
    assert missing in done.stdout


def test_dibs_by_itself_does_not_import_the_driver() -> None:
    code = "import sys, dibs, dibs.aio\nprint({'redis', 'hiredis'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_a_server_that_repeats_the_password_is_not_quoted() -> None:
    """One that does not know AUTH answers with what followed it: this must reach nobody."""
    with Server(Redis('rename-command AUTH ""')) as foreign:
        client = dibs.connect(f"redis://ana:s3cr3t@127.0.0.1:{foreign.port}", retry=1.0)
        try:
            with pytest.raises(dibs.StoreError) as caught:
                client.lock("a").acquire(timeout=1.0)
        finally:
            client.close()
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))
    assert "unknown command" in str(caught.value)


def test_a_certificate_that_cannot_be_trusted_is_refused_at_once(secured: Server) -> None:
    client = dibs.connect(f"rediss://localhost:{secured.port}")
    try:
        with pytest.raises(dibs.StoreError) as caught:
            client.lock("a").acquire(timeout=20.0)
    finally:
        client.close()
    assert not isinstance(caught.value, dibs.StoreUnavailable)
    assert "ca=/path/of/its.pem" in str(caught.value)
