"""An existing driver of redis-py, of either API: its settings are honoured, on real servers; what cannot be honoured
is refused by name; and no secret of it is shown. Drivers of sentinels and clusters: test_topology.py."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import ConstantBackoff
from redis.connection import Connection
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel

import dibs
import dibs.aio
from dibs.backends.redis.address import Address
from dibs.backends.redis.discovery import ask
from dibs.url import parse
from lab.servers.certificates import Certificates
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server

PATIENCE = 30.0
BOTH = pytest.mark.parametrize("module", [redis, redis.asyncio], ids=["blocking", "asyncio"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    require("redis")
    path = tmp_path_factory.mktemp("s") / "r.sock"
    with Server(Redis(f"unixsocket {path}", users={"ana": ">pw-of-ana ~* &* +@all"})) as made:
        yield made, path


@pytest.fixture(scope="module")
def secured(pems: Certificates) -> Iterator[Server]:
    require("redis")
    with Server(Redis(tls=pems, client_certificates=True)) as made:
        yield made


def made_by(address: Address) -> Any:
    return address.connection(address.endpoints[0], PATIENCE)


def seen(address: Address) -> dict[str, str]:
    """The server's facts about a connection."""
    answer: bytes = ask(made_by(address), "CLIENT", "INFO")
    return dict(word.split("=", 1) for word in answer.decode().split())


@BOTH
def test_login_database_name_and_keep_alive(module: Any, server: tuple[Server, Path]) -> None:
    port = server[0].port
    driver = module.Redis(
        host="localhost", port=port, db=3, username="ana", password="pw-of-ana", client_name="shop",
        socket_keepalive=True, socket_keepalive_options={socket.TCP_KEEPIDLE: 77},
    )  # fmt: skip
    address = Address.of_driver(driver)
    assert (address.topology, address.endpoints) == ("single", (("localhost", port),))
    facts = seen(address)
    assert (facts["user"], facts["db"], facts["name"]) == ("ana", "3", "shop")
    assert f"{address!r}" == f"<Address redis://localhost:{port}/3>"
    made = made_by(address)
    made.connect()
    assert made._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
    made.disconnect()
    provider = UsernamePasswordCredentialProvider("ana", "pw-of-ana")
    assert seen(Address.of_driver(module.Redis(port=port, credential_provider=provider)))["user"] == "ana"


@BOTH
def test_a_socket_a_url_and_the_protocol(module: Any, server: tuple[Server, Path]) -> None:
    path = server[1]
    for protocol in (2, 3):
        for driver in (
            module.Redis(unix_socket_path=str(path), db=1, protocol=protocol),
            module.Redis.from_url(f"unix://{path}?db=1", protocol=protocol),
            module.Redis(connection_pool=module.ConnectionPool.from_url(f"unix://{path}?db=1", protocol=protocol)),
            module.ConnectionPool.from_url(f"unix://{path}?db=1", protocol=protocol),
        ):
            address = Address.of_driver(driver)
            assert (address.endpoints, address.shown) == ((str(path),), f"unix://{path}")
            facts = seen(address)
            assert (facts["db"], facts["resp"]) == ("1", str(protocol))


@pytest.mark.gate
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
        assert ask(made_by(address), "PING") == b"PONG"
    with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(made_by(Address.of_driver(module.Redis(port=secured.port, ssl=True))), "PING")


@BOTH
def test_timeouts_retries_health_checks_and_decoding_are_ours(module: Any, server: tuple[Server, Path]) -> None:
    driver = module.Redis(
        port=server[0].port, socket_timeout=1e-9, retry=Retry(ConstantBackoff(1), 10), health_check_interval=1,
        decode_responses=True, max_connections=1, encoding="utf-16",
    )  # fmt: skip
    made = made_by(Address.of_driver(driver))
    assert (made.socket_timeout, made.retry.get_retries(), made.health_check_interval) == (PATIENCE, 0, 0)
    assert ask(made, "PING") == b"PONG"


def test_a_function_of_the_users_logs_in(server: tuple[Server, Path]) -> None:
    def log_in(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("AUTH", "ana", "pw-of-ana")
        connection.read_response()

    assert seen(Address.of_driver(redis.Redis(port=server[0].port, redis_connect_func=log_in)))["user"] == "ana"


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
    (lambda: Sentinel([("h1", 26379)], password="s3cr3t"), TypeError, "pass the result of its master_for(service)"),
    (lambda: AsyncSentinel([("h1", 26379)]), TypeError, "pass the result of its master_for(service)"),
    (lambda: Sentinel([("h1", 26379)], password="s3cr3t").slave_for("main"), ValueError, "use master_for(service)"),
    (lambda: Sentinel([]).master_for("main"), ValueError, "no sentinels to ask"),
    (lambda: socket, TypeError, "or a driver (psycopg_pool.pool.ConnectionPool, "),
    (lambda: socket, TypeError, "redis.asyncio.client.Redis, redis.asyncio.cluster.RedisCluster, "),
    (lambda: 5, TypeError, "not int"),
]  # fmt: skip


@pytest.mark.parametrize("api", [dibs, dibs.aio], ids=["blocking", "asyncio"])
def test_a_driver_that_cannot_be_honoured(api: Any) -> None:
    for make, kind, why in REFUSED:
        with pytest.raises(kind) as caught:
            api.connect(make())
        assert why in str(caught.value)
        assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


def test_options_beside_a_driver_and_a_class_of_the_users_own() -> None:
    class Ours(redis.Redis):
        pass

    with dibs.connect(Ours(host="h1")) as client:
        assert "redis://h1:6379/0" in repr(client)
    address = Address.of_driver(redis.Redis(), replicas=1, wake="spin")
    assert (address.replicas, address.wake) == (1, "spin")
    for option in ("db", "ca", "password", "sentinel_password"):
        with pytest.raises(TypeError, match=f"no store option '{option}'; there are"):
            Address.of_driver(redis.Redis(), **{option: "s3cr3t"})


@BOTH
def test_nothing_secret_is_shown(module: Any) -> None:
    driver = module.Redis(host="h1", username="ana", password="s3cr3t", ssl=True, ssl_password="s3cr3t")
    with dibs.connect(driver) as client:
        said = f"{client!r} {client} {Address.of_driver(driver)!r} {vars(Address.of_driver(driver))}"
        assert "rediss://h1:6379/0" in said
        assert "s3cr3t" not in said


@BOTH
def test_either_api_takes_either_driver(module: Any, server: tuple[Server, Path]) -> None:
    async def awaited() -> int:
        async with dibs.aio.connect(driver) as client, client.lock("a", timeout=20) as hold:
            return hold.token

    driver = module.Redis(port=server[0].port, decode_responses=True)
    assert asyncio.run(awaited()) > 0
    with dibs.connect(driver) as client, client.lock("a", timeout=20) as hold:
        assert hold.token > 0


_MISSING = """
import sys, dibs, dibs.aio
print({'redis', 'hiredis'} & set(sys.modules))
sys.modules[sys.argv[1]] = None
for url in ("redis://h1", "rediss://h1", "unix:///a", "redis+sentinel://h1/m", "rediss+cluster://h1"):
    try:
        dibs.connect(url)
    except dibs.MissingDriver as error:
        print(error)
"""


def test_a_missing_driver_names_the_extra() -> None:
    """And dibs by itself does not import it."""
    for missing in ("redis", "hiredis"):
        done = subprocess.run([sys.executable, "-c", _MISSING, missing], capture_output=True, text=True, check=True)
        imported, *told = done.stdout.splitlines()
        assert imported == "set()"
        assert len(told) == 5
        for text in told:
            assert text.endswith("Next: pip install 'dibs[redis]', or in a checkout of dibs: pip install '.[redis]'")
            assert missing in text


def test_a_server_that_repeats_the_password_is_not_quoted() -> None:
    """A server without AUTH answers with the arguments, which no error may show."""
    require("redis")
    with Server(Redis('rename-command AUTH ""')) as foreign:
        url = f"redis://ana:s3cr3t@127.0.0.1:{foreign.port}"
        with pytest.raises(redis.RedisError, match="s3cr3t"):  # it does happen
            made_by(Address.of(parse(url))).connect()
        with (
            dibs.connect(url) as client,
            pytest.raises(dibs.StoreError, match="unknown command") as caught,
        ):
            client.lock("a").acquire(timeout=20)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))
