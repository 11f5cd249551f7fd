"""Many waiters of one client on one name: they share listings, keep order and exclusion, and delay neither heartbeats
nor the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from kazoo.client import KazooClient

import dibs
import dibs.aio
from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.node_claims import NodeClaims
from dibs.backends.zookeeper.store import Feed
from dibs.backends.zookeeper.wire.client import SessionClient
from dibs.backends.zookeeper.wire.codec import Request
from dibs.backends.zookeeper.wire.exchange import Exchange
from dibs.backends.zookeeper.wire.session import PATIENCE as PATIENCE_FOR_A_BEAT
from dibs.core.queue import ClientIdentity
from dibs.runtime.threads import ThreadRuntime
from dibs.testing.contract.harness import eventually
from dibs.url import parse
from lab import splitters
from lab.curator import PATIENCE
from lab.faults import Cut, at_message
from lab.proxy import DOWN, Proxy
from lab.servers import ports
from lab.servers.supervisor import Server
from store.zookeeper.faulty import answer_to

GET_CHILDREN = 12
CROWD = 200
KINDS: dict[str, Callable[[dibs.aio.Client], dibs.aio.Lock]] = {
    "lock": lambda client: client.lock("crowd"),
    "write": lambda client: client.rwlock("crowd").write,
    "read": lambda client: client.rwlock("crowd").read,
    "semaphore": lambda client: client.semaphore("crowd", 1),
}


def standing(client: dibs.aio.Client) -> int:
    """The number of its claims that have a node."""
    return sum(node_claim.session is not None for node_claim in client._core.store._opened.node_claims._by_id.values())


async def in_queue(client: dibs.aio.Client, count: int) -> None:
    await eventually(lambda: standing(client) >= count, PATIENCE)


async def taken(lock: dibs.aio.Lock) -> dibs.aio.Hold:
    hold = await lock.acquire()
    assert hold is not None
    return hold


@pytest.mark.gate
@pytest.mark.parametrize(("kind", "queue"), [("lock", b"/crowd\0"), ("read", b"/crowd\0"), ("semaphore", b"/locks\0")])
def test_waiters_on_one_name_share_listings(url: str, requests: list[Request], kind: str, queue: bytes) -> None:
    """Waiters that do not share listings need at least one each. A busy machine shares fewer of them."""

    async def one(client: dibs.aio.Client) -> None:
        async with KINDS[kind](client):
            """Served."""

    async def play() -> None:
        async with dibs.aio.connect(url) as client:
            hold = await taken(KINDS["write" if kind == "read" else kind](client))
            async with asyncio.TaskGroup() as group:
                for _ in range(CROWD):
                    group.create_task(one(client))
                await in_queue(client, CROWD + 1)
                await hold.release()

    asyncio.run(play())
    listings = [request.body for request in requests if request.operation == GET_CHILDREN]
    assert sum(path.endswith(queue) for path in listings) <= CROWD / 2


@pytest.mark.gate
def test_order_and_exclusion_hold_when_waiters_leave(url: str, kazoo: KazooClient) -> None:
    """Two clients in one queue. Some waiters give up; an operator removes the nodes of others."""
    path = f"{url.rpartition('/')[2]}/dibs/crowd"
    tokens: list[int] = []
    inside: list[int] = []

    async def play() -> None:
        async with dibs.aio.connect(url) as first, dibs.aio.connect(url) as second:
            hold = await taken(first.lock("crowd"))

            async def one(client: dibs.aio.Client, number: int) -> None:
                async with client.lock("crowd") as mine:
                    inside.append(number)
                    assert inside == [number]
                    tokens.append(mine.token)
                    await asyncio.sleep(0)
                    inside.remove(number)

            tasks = []
            for number in range(60):
                client = (first, second)[number // 3 % 2]
                tasks.append(asyncio.create_task(one(client, number)))
                if number % 10 == 9:
                    await in_queue(first, sum(n // 3 % 2 == 0 for n in range(number + 1)) + 1)
                    await in_queue(second, sum(n // 3 % 2 == 1 for n in range(number + 1)))
            nodes = sorted(kazoo.get_children(path), key=lambda name: name[-10:])
            assert len(nodes) == 61
            for number in (4, 5, 30, 31, 32, 59):
                tasks[number].cancel()
            for number in (1, 7, 8, 9, 10, 40):
                kazoo.delete(f"{path}/{nodes[number]}")  # these join again, at the end
            await hold.release()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await asyncio.wait_for(task, PATIENCE)

    asyncio.run(play())
    assert len(tokens) == 54
    assert tokens == sorted(tokens)


def test_numbers_of_a_directory_that_was_made_anew_are_not_compared(url: str, kazoo: KazooClient) -> None:
    """They restart, so the number that follows the last known one may be behind other clients."""
    path = f"{url.rpartition('/')[2]}/dibs/crowd"

    async def play() -> None:
        async with dibs.aio.connect(url) as client:
            _hold = await taken(client.lock("crowd"))
            waits = asyncio.create_task(client.lock("crowd").acquire())
            await in_queue(client, 2)
            operation = kazoo.transaction()
            # The waiter's node first: with the holder's it would come to hold, and be broken right after.
            for node in sorted(kazoo.get_children(path), key=lambda name: name[-10:], reverse=True):
                operation.delete(f"{path}/{node}")
            operation.delete(path)
            operation.create(path)
            for _ in range(2):
                operation.create(f"{path}/lock-", sequence=True)
            assert not [result for result in operation.commit() if isinstance(result, Exception)]
            await eventually(lambda: len(kazoo.get_children(path)) == 3)
            async with client.lock("other"):
                """Earlier replies have been handled."""
            assert not waits.done()
            for number in range(2):
                kazoo.delete(f"{path}/lock-{number:010d}")
            assert await asyncio.wait_for(waits, PATIENCE)

    asyncio.run(play())


@pytest.mark.gate
@pytest.mark.parametrize("kind", ["read", "semaphore"])
def test_a_listing_whose_answer_was_lost_is_asked_for_again(server: Server, url: str, kind: str) -> None:
    """The claim has a node, but does not know which one to watch."""

    def lists(message: bytes) -> bool:
        return message[8:12] == GET_CHILDREN.to_bytes(4) and b"crowd" in message

    async def play(client: dibs.aio.Client, proxy: Proxy) -> None:
        async with client:
            hold = await taken(KINDS["write" if kind == "read" else kind](client))
            strike = answer_to(proxy, lists)
            proxy.add(Cut(at_message(match=strike)), DOWN)
            waits = asyncio.create_task(taken(KINDS[kind](client)))
            await in_queue(client, 2)
            await hold.release()
            await asyncio.wait_for(waits, PATIENCE)
            assert strike.struck

    with Proxy((ports.HOST, server.port), splitter=splitters.zookeeper) as proxy:
        asyncio.run(play(dibs.aio.connect(url.replace(f":{server.port}", f":{proxy.port}")), proxy))


def test_few_tasks_wake_in_one_round_of_the_loop(url: str) -> None:
    """Other callbacks run in between."""
    woken: list[int] = [0]

    async def play() -> None:
        async with dibs.aio.connect(url) as client:
            async with client.lock("connected"):
                """And from here on nothing else is asked."""
            exchange: Exchange = client._core.store._opened.client._exchange
            inbox, now = client._core.me.inbox, client._core.now

            async def wait(key: bytes) -> None:
                inbox.expect(key)
                await inbox.wait(key, now() + PATIENCE)
                woken[-1] += 1

            def begin_a_round() -> None:
                woken.append(0)
                if sum(woken) < 1000:
                    asyncio.get_running_loop().call_soon(begin_a_round)

            keys = [b"waiter %d" % number for number in range(1000)]
            tasks = [asyncio.create_task(wait(key)) for key in keys]
            await asyncio.sleep(0)
            begin_a_round()
            for key in keys:
                exchange.tell(inbox, key, b"!")
            await asyncio.to_thread(exchange.deliver)
            await asyncio.wait(tasks)

    asyncio.run(play())
    assert sum(woken) == 1000
    assert max(woken) <= 200


def test_a_loop_that_was_closed_with_messages_left_does_not_delay_the_next(url: str) -> None:
    client = dibs.aio.connect(url)
    feed: Feed

    async def close_amidst() -> None:
        nonlocal feed
        async with client.lock("connected"):
            """And bound to this loop."""
        feed = client._core.store._opened.feed
        feed.put([(b"%d" % number, b"!") for number in range(1000)])
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)

    async def go_on() -> None:
        async with client, client.lock("a", timeout=PATIENCE):
            """Answered in time."""

    loop = asyncio.new_event_loop()
    with suppress(RuntimeError):  # it was stopped before it was done
        loop.run_until_complete(close_amidst())
    loop.close()
    assert feed._messages
    asyncio.run(go_on())


def test_a_heartbeat_waits_while_other_replies_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies come in order, so its own is behind them. A silent connection is closed."""
    runtime = ThreadRuntime()
    address = Address(parse("zookeeper://127.0.0.1:1"))
    broken: list[str] = []
    owner = NodeClaims(ClientIdentity(b"", runtime.inbox(), 30.0, lambda _: None), runtime.now)
    client = SessionClient(address, 30.0, runtime, runtime.inbox(), owner, None)
    monkeypatch.setattr(client, "_break", broken.append)
    client._beat = 100.0
    client._exchange.heard_at = 105.0
    assert client._beat_on(105.0 + 30.0 * PATIENCE_FOR_A_BEAT - 0.1) == 105.0 + 30.0 * PATIENCE_FOR_A_BEAT
    assert not broken
    client._beat_on(105.0 + 30.0 * PATIENCE_FOR_A_BEAT)
    assert len(broken) == 1
    client.close()
