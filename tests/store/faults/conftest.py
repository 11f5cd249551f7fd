"""One server of each kind for all fault tests of a worker process; every test finds it running and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.clock import Clock
from lab.proxy import Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server, until
from process.children import Crew
from store.clocks import readable
from store.faults.kit import PATIENCE, SHORT
from store.faults.stores import Store


@pytest.fixture(scope="session")
def _clock() -> Iterator[Clock]:
    require("gcc")
    with readable() as made:
        yield made


@pytest.fixture(scope="session")
def _server_of(_clock: Clock) -> Iterator[Callable[[Store], Server]]:
    running: dict[str, Server] = {}
    with ExitStack() as stack:

        def server_of(store: Store) -> Server:
            require(store.program)
            if store.program not in running:
                running[store.program] = stack.enter_context(Server(store.kind(), _clock.env()))
            return running[store.program]

        yield server_of


@pytest.fixture
def server(store: Store, name: str, _server_of: Callable[[Store], Server]) -> Iterator[Server]:
    """It runs at the beginning; at the end nothing of the test stands there."""
    made = _server_of(store)
    if not made.running():
        made.restart()
    yield made
    if made.running():
        made.resume()
        until(lambda: not store.stands(made, name), PATIENCE, "the test leaves nothing in the store")


@pytest.fixture
def clock_of_server(_clock: Clock) -> Iterator[Clock]:
    """The clock of every server here; set right again at the end."""
    yield _clock
    _clock.step(-_clock.offset)


@pytest.fixture
def proxy(store: Store, server: Server) -> Iterator[Proxy]:
    with Proxy((ports.HOST, server.port), splitter=store.splitter) as made:
        yield made
        made.heal()  # in asyncio, what a client says at its end is still on its way
        made.wait_for(lambda: all(link.up.ended for link in made.open_links), what="clients have hung up")


@pytest.fixture
def crew(store: Store, server: Server, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path, store.url(server), lease=SHORT)
    yield made
    made.disband()
