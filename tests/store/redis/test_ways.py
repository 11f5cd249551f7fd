"""Ways to a server besides a plain connection: encrypted, through a socket of the machine, and without messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dibs.testing.contract.harness import World, eventually
from lab.servers.certificates import Certificates
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from store.faults.kit import both_apis

SECRET = "s3cr3t"
TIME = 40
DEAF = f">{SECRET} ~* resetchannels &* +@all -subscribe -psubscribe -ssubscribe"


@pytest.fixture(scope="module")
def secure(pems: Certificates) -> Iterator[Server]:
    """It requires client certificates."""
    require("redis")
    with Server(Redis(tls=pems, password=SECRET, client_certificates=True)) as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    require("redis")
    path = str(tmp_path_factory.mktemp("s") / "redis.sock")
    assert len(path) < 100
    with Server(Redis(f"unixsocket {path}", users={"deaf": DEAF})) as made:
        yield made, path


async def is_of_use(world: World, url: str, **options: Any) -> None:
    one, other = world.client(url, **options), world.client(url, **options)
    ana, bob = world.actors("ana", "bob")
    for mine, theirs in zip(every_kind(one), every_kind(other), strict=True):
        hold = await ana(lambda mine=mine: mine.acquire(timeout=TIME))
        pending = bob.start(lambda theirs=theirs: theirs.acquire(timeout=TIME))
        await eventually(lambda: not repr(other).endswith(": 0 held or asked for>"))
        assert not pending.done()
        hold.check()
        await ana(hold.release)
        got = await pending
        assert got.token > hold.token
        await bob(got.release)


def every_kind(client: Any) -> list[Any]:
    return [
        client.lock("lock"),
        client.rlock("rlock"),
        client.rwlock("rw").write,
        client.semaphore("semaphore", 1),
        client.lock("unfair", fair=False),
        client.election("election").lead(),
        client.striped("striped", 2).at("key"),
    ]


def shown_to(pems: Certificates) -> dict[str, Any]:
    return {"ca": pems.authority.certificate, "certificate": pems.client.certificate, "key": pems.client.key}


@both_apis
async def test_tls_with_a_certificate_of_ones_own(world: World, secure: Server, pems: Certificates) -> None:
    await is_of_use(world, secure.url(), **shown_to(pems))


@pytest.mark.gate
@both_apis
async def test_much_at_once_over_tls(world: World, secure: Server, pems: Certificates) -> None:
    """More than one TLS record, in both directions."""
    client = world.client(secure.url(), **shown_to(pems))
    ana, name = world.actor("ana"), f"large-{world.api}"
    version = await ana(lambda: client.cell(name).set(b"x" * 65_000, 0))
    for _ in range(5):
        version = await ana(lambda version=version: client.cell(name).set(b"y" * 65_000, version))
        value, _ = await ana(lambda: client.cell(name).get())
        assert value == b"y" * 65_000


@both_apis
async def test_a_socket_of_the_machine(world: World, server: tuple[Server, str]) -> None:
    await is_of_use(world, f"unix://{server[1]}?prefix={world.api}:")


@pytest.mark.gate
@both_apis
async def test_every_kind_without_messages(world: World, server: tuple[Server, str]) -> None:
    """The user may not subscribe."""
    url = server[0].url(user="deaf", password=SECRET)
    await is_of_use(world, f"{url}?wake=spin&prefix=spin-{world.api}:")
