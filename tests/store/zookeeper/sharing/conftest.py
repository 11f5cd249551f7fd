"""One Java process for all of this folder; its tests go to one worker, as all that use that server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.curator import Curator
from lab.servers.supervisor import Server
from store.sides import Python, python


@pytest.fixture(scope="session")
def java(server: Server) -> Iterator[Curator]:
    with Curator(f"127.0.0.1:{server.port}") as java:
        yield java


@pytest.fixture
def side(server: Server, request: pytest.FixtureRequest) -> Iterator[Python]:
    """dibs through one API: sync, unless the test is parametrized."""
    with python(getattr(request, "param", "blocking"), server.url()) as side:
        yield side


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    """For this test alone: the server is shared."""
    return "/shared/" + request.node.name.replace("[", "-").strip("]")
