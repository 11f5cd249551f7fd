"""`client.ping` asks a server each time: a stopped one does not answer, and one that goes on does."""

from __future__ import annotations

import asyncio

import pytest

import dibs
from dibs.testing.contract.harness import World
from lab.servers.supervisor import Server
from store.faults.kit import TIMEOUT, both_apis
from store.faults.stores import SERVERS, Store, on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@on(SERVERS)
@both_apis
async def test_a_stopped_server_does_not_answer(world: World, store: Store, server: Server, name: str) -> None:
    client = world.client(store.url(server))
    await world(lambda: client.ping(TIMEOUT))
    await asyncio.to_thread(server.stop)
    try:
        with pytest.raises(dibs.StoreUnavailable) as caught:
            await world(lambda: client.ping(timeout=0.2))
    finally:
        await asyncio.to_thread(server.resume)
    assert caught.value.store in str(caught.value)
    assert await world(lambda: client.ping(TIMEOUT)) > 0
