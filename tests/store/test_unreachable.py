"""No server answers: every call ends in a public class, and its text names host, port, cause and the next step."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dibs
import dibs.aio

SECRET = "sesame"
URLS = {
    "redis": "redis://ana:sesame@{at}/0",
    "sentinel": "redis+sentinel://{at}/mymaster",
    "cluster": "redis+cluster://{at}",
    "quorum": "quorum+redis://{at},{other},[::1]:{port}",
    "postgresql": "postgresql://ana:sesame@{at}/app",
    "postgresql session": "postgresql://ana:sesame@{at}/app?mode=session",
    "mysql": "mysql://ana:sesame@{at}/app",
    "mysql session": "mysql://ana:sesame@{at}/app?mode=session",
    "zookeeper": "zookeeper://ana:sesame@{at}",
}
FIRST = ("redis", "postgresql", "mysql", "zookeeper")
CALLS: dict[str, Callable[[Any], Any]] = {
    "acquire": lambda client: client.lock("a").acquire(),
    "inspect": lambda client: client.inspect("a"),
    "break": lambda client: client.break_("a", token=1),
    "list": lambda client: list(client.locks()),
}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A port without a listener, which no other process gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def failure(call: Callable[[], Any]) -> str:
    with pytest.raises(dibs.StoreUnavailable) as caught:
        call()
    shown = "".join(traceback.format_exception(caught.value))
    assert type(caught.value) is dibs.StoreUnavailable
    assert "dibs.core.queue." not in shown, "a private class is shown"
    assert SECRET not in shown
    return str(caught.value)


def fits(text: str, at: str) -> None:
    assert at in text
    assert any(cause in text for cause in ("Connection refused", "in time", "no time was left")), text
    assert ". Next: " in text
    assert not any(odd in text for odd in ("..", ".:", "?.", "?,", ": .")), text


@pytest.mark.parametrize(
    "store", [pytest.param(store, marks=() if store in FIRST else pytest.mark.gate) for store in URLS]
)
def test_a_server_that_is_down(store: str, port: int) -> None:
    at = f"127.0.0.1:{port}"
    url = URLS[store].format(at=at, other=f"localhost:{port}", port=port)

    async def by_await() -> None:
        async with dibs.aio.connect(url, retry=1) as client:
            await client.lock("a").acquire()

    with dibs.connect(url, retry=0.05) as client:
        said = [failure(lambda ask=ask: ask(client)) for ask in CALLS.values()]
    for text in (*said, failure(lambda: asyncio.run(by_await()))):
        fits(text, at)


@pytest.mark.gate
@pytest.mark.parametrize("store", ["redis", "postgresql", "mysql"])
def test_a_host_name_that_is_unknown(store: str) -> None:
    with dibs.connect(URLS[store].format(at="nowhere.invalid"), retry=20) as client:
        assert failure(lambda: client.inspect("a")).endswith(". Next: check the host name")
