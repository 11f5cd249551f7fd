"""The fault proxy on real sockets. The stores' fault tests use all its faults, and show that they happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lab import splitters
from lab.faults import BlackHole, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.wire import Client, Server, Wire


@pytest.fixture
def wire() -> Iterator[Wire]:
    with ExitStack() as stack:
        yield Wire(stack)


def test_it_passes_and_counts(wire: Wire) -> None:
    client = wire.client()
    assert client.ask(b"one\ntwo\n") == b"one\ntwo\n"
    assert client.ask(b"three\n") == b"three\n"
    (link,) = wire.proxy.links
    assert link.peer == client.socket.getsockname()
    wire.proxy.wait_for(lambda: link.down.passed.messages == 3)
    assert (link.up.passed.messages, link.up.passed.bytes) == (3, 14)
    assert wire.proxy.total(DOWN, "passed") == (3, 14)
    for flow in (link.up, link.down):
        assert (flow.dropped.messages, flow.held.messages) == (0, 0)


def test_the_end_passes_as_an_end_and_a_reset_as_a_reset(wire: Wire) -> None:
    polite, rude = wire.client(), wire.client()
    assert polite.ask(b"x\n") + rude.ask(b"y\n") == b"x\ny\n"
    by_text = {peer.received: peer for peer in wire.server.peers}
    polite.close()
    rude.slam()
    by_text[b"x\n"].await_fate("eof")
    by_text[b"y\n"].await_fate("reset")
    wire.proxy.wait_for(lambda: not wire.proxy.open_links)
    assert sorted(link.was_reset for link in wire.proxy.links) == [False, True]


def test_a_black_hole_swallows_links_old_and_new(wire: Wire) -> None:
    idle, old = wire.client(), wire.client()
    assert idle.ask(b"idle\n") == b"idle\n"
    assert old.ask(b"old\n") == b"old\n"
    wire.proxy.add(BlackHole())
    new = wire.client()
    old.send(b"lost\n")
    new.send(b"lost too\n")
    wire.proxy.wait_for(lambda: wire.proxy.total(UP, "dropped") == (2, 14))
    assert not old.hears()
    assert not new.hears()
    assert b"lost" not in b"".join(peer.received for peer in wire.server.peers)
    assert len(wire.server.peers) == 2, "the server never heard of the new one"
    wire.proxy.heal()
    assert old.fate() == new.fate() == "reset"
    assert idle.ask(b"x\n") == b"x\n", "it lost nothing"
    assert wire.client().ask(b"x\n") == b"x\n"


def test_a_splitter_that_fails_is_heard_of() -> None:
    with Server() as server:
        proxy = Proxy(server.server_address[:2], splitter=splitters.resp)
        client = Client(proxy.port)
        client.send(b"$many\r\n")
        assert client.fate() == "eof"
        client.close()
        with pytest.raises(ExceptionGroup) as caught:
            proxy.close()
    assert "invalid literal" in str(caught.value.exceptions[0].exceptions[0])


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


@pytest.mark.parametrize("end", ["close", "slam"])
def test_a_request_delivered_late_after_its_sender_has_gone(wire: Wire, end: str) -> None:
    for n in range(3):
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


def test_a_reply_to_somebody_who_has_gone_is_delivered_to_nobody(wire: Wire) -> None:
    client = wire.client()
    hold = wire.proxy.hold(DOWN)
    client.send(b"x\n")
    hold.await_held()
    client.slam()
    wire.proxy.wait_for(lambda: not wire.proxy.open_links)
    assert hold.deliver() == 0
    assert wire.proxy.links[0].down.dropped.messages == 1
