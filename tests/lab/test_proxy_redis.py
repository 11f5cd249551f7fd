"""The proxy before a real Redis: a request runs after its sender gave up, a reply is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import splitters
from lab.faults import Cut, at_message
from lab.peers import Client, ask, call, command
from lab.proxy import DOWN, UP, Proxy
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from process.children import until


@pytest.fixture
def redis() -> Iterator[Server]:
    require("redis")
    with Server(Redis()) as made:
        yield made


@pytest.fixture
def proxy(redis: Server) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", redis.port), splitter=splitters.resp) as made:
        yield made


def is_incr(text: bytes) -> bool:
    return b"INCR" in text


@pytest.mark.parametrize("end", ["close", "slam"])
def test_a_request_that_its_sender_gave_up_runs_later_and_once(redis: Server, proxy: Proxy, end: str) -> None:
    with Client(proxy.port) as client:
        assert call(client, "SET", "n", 1) == b"+OK\r\n"
        hold = proxy.hold(UP, at_message(match=is_incr))
        client.send(command("INCR", "n"))
        assert hold.await_held() == [command("INCR", "n")]
        assert not client.hears()
        getattr(client, end)()
    assert ask(redis.port, "GET", "n") == b"$1\r\n1\r\n", "the server has not heard of it"
    assert hold.deliver() == 1
    proxy.wait_for(lambda: not proxy.open_links)
    until(lambda: ask(redis.port, "GET", "n") == b"$1\r\n2\r\n", what="the late INCR")
    assert proxy.total(UP, "held") == (1, len(command("INCR", "n")))


def test_a_reply_that_is_lost_leaves_its_effect(redis: Server, proxy: Proxy) -> None:
    with Client(proxy.port) as client:
        assert call(client, "PING") == b"+PONG\r\n"
        proxy.add(Cut(at_message(1), reset=True), DOWN)
        client.send(command("INCR", "n"))
        assert client.fate() == "reset"
    assert ask(redis.port, "GET", "n") == b"$1\r\n1\r\n"
    assert proxy.total(DOWN, "dropped") == (1, 4)


def test_pipelined_requests_are_told_apart(redis: Server, proxy: Proxy) -> None:
    with Client(proxy.port) as client:
        hold = proxy.hold(UP, at_message(2, match=is_incr))
        client.send(command("INCR", "n") * 3)
        hold.await_held()
        assert client.receive(4) == b":1\r\n"
        assert ask(redis.port, "GET", "n") == b"$1\r\n1\r\n"
        proxy.heal()
        assert client.receive(8) == b":2\r\n:3\r\n"
    assert proxy.total(UP, "passed")[0] == 3
