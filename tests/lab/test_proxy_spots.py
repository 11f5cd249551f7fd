"""Faults at a certain byte or message: cut, dripped, held, and delivered late, after the sender gave up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lab.faults import Cut, Drip, after_bytes, at_message
from lab.proxy import DOWN, UP
from lab.wire import Wire


@pytest.fixture
def wire() -> Iterator[Wire]:
    with ExitStack() as stack:
        yield Wire(stack)


def test_reset_at_the_next_byte(wire: Wire) -> None:
    client = wire.client()
    assert client.ask(b"x\n") == b"x\n"
    wire.proxy.add(Cut(after_bytes(0), reset=True), UP)
    assert not client.hears()
    client.send(b"y\n")
    assert client.fate() == "reset"
    wire.server.peer().await_fate("reset")
    assert wire.server.peer().received == b"x\n"
    assert wire.proxy.links[0].up.dropped.bytes == 2


@pytest.mark.parametrize("reset", [False, True])
def test_cut_after_n_bytes_in_the_middle_of_a_message(wire: Wire, reset: bool) -> None:
    wire.silence()
    client = wire.client()
    wire.proxy.add(Cut(after_bytes(8), reset=reset), UP)
    client.send(b"one\nt")
    wire.server.peer().await_received(b"one\n")
    client.send(b"wo\nthree\n")
    wire.server.peer().await_fate("reset" if reset else "eof")
    assert wire.server.peer().received == b"one\ntwo\n"
    assert client.fate() == ("reset" if reset else "eof")
    up = wire.proxy.links[0].up
    assert (up.passed.messages, up.passed.bytes, up.dropped.bytes) == (2, 8, 6)


def test_cut_within_a_message(wire: Wire) -> None:
    client = wire.client()
    wire.proxy.add(Cut(after_bytes(6)), DOWN)
    client.send(b"one\ntwo\n")
    assert client.receive(100) == b"one\ntw"
    down = wire.proxy.links[0].down
    assert (down.passed.messages, down.passed.bytes, down.dropped.bytes) == (1, 6, 2)


def test_cut_at_the_nth_message(wire: Wire) -> None:
    client = wire.client()
    assert client.ask(b"before\n") == b"before\n"
    wire.proxy.add(Cut(at_message(3)), DOWN)
    client.send(b"1\n2\n3\n4\n")
    assert client.receive(100) == b"1\n2\n"
    wire.server.peer().await_received(b"before\n1\n2\n3\n4\n")
    assert wire.proxy.links[0].down.dropped.messages >= 1


def test_drip(wire: Wire) -> None:
    wire.silence()
    client = wire.client()
    wire.proxy.add(Drip(0.01), UP)
    begun = time.monotonic()
    client.send(b"0123456789\n")
    up = wire.proxy.wait_for(lambda: wire.proxy.links and wire.proxy.links[0].up)
    for n in range(1, 11):
        wire.proxy.wait_for(lambda n=n: up.passed.bytes >= n)
        assert up.passed.messages == 0
    wire.server.peer().await_received(b"0123456789\n")
    assert time.monotonic() - begun >= 10 * 0.01
    wire.proxy.add(Drip(600), UP)
    client.send(b"0123456789\n")
    wire.proxy.wait_for(lambda: up.passed.bytes == 12)
    wire.proxy.heal()
    wire.server.peer().await_received(b"0123456789\n0123456789\n")


def test_hold_at_the_nth_message_that_fits(wire: Wire) -> None:
    client, other = wire.client(), wire.client()
    hold = wire.proxy.hold(UP, at_message(2, match=lambda text: b"put" in text))
    client.send(b"get\nput 1\nget\nput 2\nget\n")
    assert hold.await_held() == [b"put 2\n"]
    assert client.receive(14) == b"get\nput 1\nget\n"
    assert not client.hears(), "what comes behind it waits with it"
    assert other.ask(b"put 3\n") == b"put 3\n", "only that one is held"
    assert hold.deliver() == 1
    assert client.receive(10) == b"put 2\nget\n"
    up = wire.proxy.links[0].up
    assert (up.held.messages, up.held.bytes, up.passed.messages) == (1, 6, 5)
    assert client.ask(b"put 4\n") == b"put 4\n"


def test_hold_in_the_middle_of_a_message(wire: Wire) -> None:
    client = wire.client()
    hold = wire.proxy.hold(DOWN, after_bytes(2))
    client.send(b"one\n")
    assert hold.await_held() == [b"e\n"]
    assert client.receive(2) == b"on"
    assert not client.hears()
    wire.proxy.heal()
    assert client.receive(2) == b"e\n"
    wire.proxy.wait_for(lambda: wire.proxy.total(DOWN, "passed") == (1, 4))


def test_two_holds_count_the_same_messages(wire: Wire) -> None:
    client = wire.client()
    first, second = wire.proxy.hold(UP, at_message(1)), wire.proxy.hold(UP, at_message(2))
    client.send(b"a\nb\n")
    first.await_held()
    assert second.messages == []
    first.deliver()
    assert second.await_held() == [b"b\n"]
    second.deliver()
    assert client.receive(4) == b"a\nb\n"


def test_one_hold_on_several_links(wire: Wire) -> None:
    clients = [wire.client() for _ in range(4)]
    hold = wire.proxy.hold(UP, often=3)
    for n, client in enumerate(clients):
        client.send(b"%d\n" % n)
    assert len(set(hold.await_held(3))) == 3
    wire.proxy.wait_for(lambda: wire.proxy.total(DOWN, "passed") == (1, 2), what="the fourth went through")
    assert hold.deliver() == 3
    assert [client.receive(2) for client in clients] == [b"0\n", b"1\n", b"2\n", b"3\n"]


@pytest.mark.parametrize("end", ["close", "slam"])
def test_a_request_delivered_late_after_its_sender_has_gone(wire: Wire, end: str) -> None:
    for n in range(10):
        client = wire.client()
        assert client.ask(b"hello\n") == b"hello\n"
        hold = wire.proxy.hold(UP)
        client.send(b"late\n")
        hold.await_held()
        assert not client.hears(0.001)
        getattr(client, end)()
        peer = wire.server.peer(n)
        assert (peer.received, peer.fate) == (b"hello\n", "open"), "the server knows neither of it nor of the end"
        assert hold.deliver() == 1
        until_end = {"close": "eof", "slam": "reset"}[end]
        peer.await_received(b"hello\nlate\n")
        peer.await_fate(until_end)
    wire.proxy.wait_for(lambda: not wire.proxy.open_links)


def test_a_reply_delivered_late(wire: Wire) -> None:
    client = wire.client()
    hold = wire.proxy.hold(DOWN, at_message(2))
    client.send(b"one\ntwo\nthree\n")
    assert client.receive(4) == b"one\n"
    assert hold.await_held() == [b"two\n"]
    assert not client.hears()
    wire.server.peer().await_received(b"one\ntwo\nthree\n")
    assert hold.deliver() == 1
    assert client.receive(10) == b"two\nthree\n"


def test_a_reply_to_somebody_who_has_gone_is_delivered_to_nobody(wire: Wire) -> None:
    client = wire.client()
    hold = wire.proxy.hold(DOWN)
    client.send(b"x\n")
    hold.await_held()
    client.slam()
    wire.proxy.wait_for(lambda: not wire.proxy.open_links)
    assert hold.deliver() == 0
    assert wire.proxy.links[0].down.dropped.messages == 1


def test_from_an_event_loop(wire: Wire) -> None:
    async def run() -> bytes:
        hold = wire.proxy.hold(UP)
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.proxy.port)
        writer.write(b"x\n")
        await asyncio.to_thread(hold.await_held)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), 0.05)
        hold.deliver()
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    assert asyncio.run(run()) == b"x\n"
