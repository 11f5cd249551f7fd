"""Ways to a server besides a plain connection: encrypted, through a socket of the machine, and without messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dibs.testing.contract.harness import World, eventually
from lab.servers import certificates
from lab.servers.certificates import Certificates
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from lab.witness import apis_of

both_apis = apis_of("redis", "redis://127.0.0.1:1")
SECRET = "s3cr3t"
TIME = 40
DEAF = f">{SECRET} ~* resetchannels &* +@all -subscribe -psubscribe -ssubscribe"
"""May do all but hear."""


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def secure(pems: Certificates) -> Iterator[Server]:
    """Whoever shows no certificate is refused."""
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


async def is_of_use(world: World, url: str, kinds: Callable[[Any], list[Any]], **options: Any) -> None:
    """Each kind: taken, waited for, handed over."""
    one, other = world.client(url, **options), world.client(url, **options)
    ana, bob = world.actors("ana", "bob")
    for mine, theirs in zip(kinds(one), kinds(other), strict=True):
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
    await is_of_use(world, secure.url(), every_kind, **shown_to(pems))


@both_apis
async def test_redissons_layout_over_tls(world: World, secure: Server, pems: Certificates) -> None:
    options = {"layout": "redisson", **shown_to(pems)}
    await is_of_use(world, secure.url(), lambda client: [client.lock(f"fenced-{world.api}", fenced=True)], **options)


@both_apis
async def test_much_at_once_over_tls(world: World, secure: Server, pems: Certificates) -> None:
    """More than one record of TLS holds, in both directions: what is read of it is all that came."""
    client = world.client(secure.url(), **shown_to(pems))
    ana, name = world.actor("ana"), f"large-{world.api}"
    version = await ana(lambda: client.cell(name).set(b"x" * 65_000, 0))
    for _ in range(5):
        version = await ana(lambda version=version: client.cell(name).set(b"y" * 65_000, version))
        value, _ = await ana(lambda: client.cell(name).get())
        assert value == b"y" * 65_000


@both_apis
async def test_a_socket_of_the_machine(world: World, server: tuple[Server, str]) -> None:
    await is_of_use(world, f"unix://{server[1]}?prefix={world.api}:", every_kind)


@both_apis
async def test_every_kind_without_messages(world: World, server: tuple[Server, str]) -> None:
    """By a user who may not subscribe: no subscription is tried."""
    url = server[0].url(user="deaf", password=SECRET)
    await is_of_use(world, f"{url}?wake=spin&prefix=spin-{world.api}:", every_kind)


@both_apis
async def test_latches_and_followers_without_messages(world: World, server: tuple[Server, str]) -> None:
    url = f"{server[0].url(user='deaf', password=SECRET)}?wake=spin&prefix=latch-{world.api}:"
    one, other = world.client(url), world.client(url)
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: one.latch("latch").arm(2))
    pending = bob.start(lambda: other.latch("latch").wait(timeout=TIME))
    for _ in range(2):
        assert not pending.done()
        await ana(lambda: one.latch("latch").count_down())
    assert await pending is True
    seen: list[Any] = []

    def follow() -> Any:
        if world.api == "blocking":
            return [seen.append(leader) for leader in _first(other.election("election").watch(), 2)]

        async def following() -> None:
            async for leader in other.election("election").watch():
                seen.append(leader)
                if len(seen) == 2:
                    return

        return following()

    following = bob.start(follow)
    await eventually(lambda: seen == [None])
    hold = await ana(lambda: one.election("election").lead().acquire(timeout=TIME))
    await following
    assert seen[1].token == hold.token


def _first(leaders: Iterator[Any], count: int) -> Iterator[Any]:
    for number, leader in enumerate(leaders, 1):
        yield leader
        if number == count:
            return
