"""The fault proxy on real sockets: what it does to whole links and at a certain byte or message, and its counters.

A request that is held and runs late, and a reply that is lost, are the daily bread of the stores' fault tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab import leaks, splitters
from lab.faults import BlackHole, Cut, Drip, Latency, Refuse, Slam, Stall, after_bytes, at_message
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
        assert (flow.dropped.messages, flow.held.messages, flow.delays) == (0, 0, [])


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


def test_an_end_in_one_direction_leaves_the_other(wire: Wire) -> None:
    wire.silence()
    client = wire.client()
    client.send(b"x\n")
    peer = wire.server.peer()
    peer.await_received(b"x\n")
    peer._connection.shutdown(1)
    assert client.receive(1) == b""
    client.send(b"y\n")
    peer.await_received(b"x\ny\n")


def test_a_message_is_forwarded_when_it_is_whole_and_the_rest_at_the_end(wire: Wire) -> None:
    client = wire.client()
    client.send(b"one\ntw")
    assert client.receive(4) == b"one\n"
    assert wire.server.peer().received == b"one\n"
    client.send(b"o\nrest")
    client.socket.shutdown(1)
    assert client.receive(100) == b"two\nrest"


def test_latency_delays_each_message_and_not_their_sum(wire: Wire) -> None:
    wire.proxy.add(Latency(0.2), UP)
    client = wire.client()
    begun = time.monotonic()
    assert client.ask(b"x\n" * 100) == b"x\n" * 100
    assert 0.2 <= time.monotonic() - begun < 100 * 0.2 / 2
    assert wire.proxy.links[0].up.delays == [0.2] * 100
    assert wire.proxy.links[0].down.delays == []


def test_jitter_comes_from_the_seed_and_keeps_the_order(wire: Wire) -> None:
    text = b"".join(b"%d\n" % n for n in range(20))

    def delays(seed: object) -> list[float]:
        proxy = wire.another(seed)
        proxy.add(Latency(0.001, jitter=0.05))
        assert wire.client(proxy).ask(text) == text
        return proxy.links[0].up.delays

    first, again, other = delays("a"), delays("a"), delays("b")
    assert first == again != other
    assert len(set(first)) == 20
    assert min(first) >= 0.001
    assert max(first) <= 0.051


def test_healing_ends_a_delay_at_once(wire: Wire) -> None:
    wire.proxy.add(Latency(600))
    client = wire.client()
    client.send(b"x\n")
    assert not client.hears()
    wire.proxy.heal()
    assert client.receive(2) == b"x\n"


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


def test_half_open_upwards_is_seen_by_neither_end_but_in_what_it_misses(wire: Wire) -> None:
    client = wire.client()
    assert client.ask(b"x\n") == b"x\n"
    wire.proxy.add(BlackHole(), UP)
    client.send(b"lost\n")
    wire.proxy.wait_for(lambda: wire.proxy.links[0].up.dropped.bytes == 5)
    peer = wire.server.peer()
    peer.send(b"still here\n")
    assert client.receive(11) == b"still here\n"
    client.close()
    peer.send(b"to nobody\n" * 10)
    wire.proxy.wait_for(lambda: wire.proxy.links[0].down.passed.messages >= 3)
    assert peer.received == b"x\n"
    assert peer.fate == "open", "the server does not know that its client has gone"
    wire.proxy.heal()
    peer.await_fate("reset")


def test_half_open_downwards_loses_the_answers(wire: Wire) -> None:
    client = wire.client()
    wire.proxy.add(BlackHole(), DOWN)
    client.send(b"heard\n")
    wire.server.peer().await_received(b"heard\n")
    wire.proxy.wait_for(lambda: wire.proxy.links[0].down.dropped.bytes == 6)
    assert not client.hears()
    client.send(b"again\n")
    wire.server.peer().await_received(b"heard\nagain\n")
    wire.server.peer().close()
    assert not client.hears(), "not even the end"
    wire.proxy.heal()
    assert client.fate() == "reset"


def test_a_link_that_lost_something_stays_silent_when_the_rule_goes(wire: Wire) -> None:
    client = wire.client()
    assert client.ask(b"x\n") == b"x\n"
    rule = wire.proxy.add(BlackHole(), UP)
    client.send(b"lost\n")
    wire.proxy.wait_for(lambda: wire.proxy.total(UP, "dropped") == (1, 5))
    wire.proxy.remove(rule)
    client.send(b"lost as well\n")
    wire.proxy.wait_for(lambda: wire.proxy.total(UP, "dropped") == (2, 18))
    assert not client.hears()
    assert wire.client().ask(b"new\n") == b"new\n"


def test_a_stall_ends_and_everything_arrives(wire: Wire) -> None:
    old = wire.client()
    assert old.ask(b"x\n") == b"x\n"
    stall = wire.proxy.add(Stall())
    new = wire.client()
    old.send(b"late\n")
    new.send(b"later\n")
    wire.proxy.wait_for(lambda: wire.proxy.total(UP, "held") == (2, 5), what="a message and a new connection")
    assert not old.hears()
    assert wire.server.peer().received == b"x\n"
    assert len(wire.server.peers) == 1
    wire.proxy.remove(stall)
    assert old.receive(5) == b"late\n"
    assert new.receive(6) == b"later\n"
    assert wire.proxy.total(UP, "dropped") == (0, 0)


def test_reset_now(wire: Wire) -> None:
    client, other = wire.client(), wire.client()
    assert client.ask(b"x\n") + other.ask(b"y\n") == b"x\ny\n"
    wire.proxy.reset(link=wire.proxy.links[0])
    assert client.fate() == "reset"
    assert [link.was_reset for link in wire.proxy.links] == [True, False]
    assert other.ask(b"z\n") == b"z\n"
    wire.proxy.reset()
    assert other.fate() == "reset"
    for peer in wire.server.peers:
        peer.await_fate("reset")


def test_refuse_and_slam_concern_only_new_links(wire: Wire) -> None:
    old = wire.client()
    assert old.ask(b"x\n") == b"x\n"
    refuse = wire.proxy.add(Refuse())
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            wire.client()
    wire.proxy.remove(refuse)
    wire.proxy.add(Slam())
    assert wire.newcomer_is_reset()
    assert old.ask(b"y\n") == b"y\n"
    wire.proxy.heal()
    assert wire.client().ask(b"z\n") == b"z\n"
    assert len(wire.server.peers) == 2


def test_a_rule_for_one_link(wire: Wire) -> None:
    first, second = wire.client(), wire.client()
    assert first.ask(b"x\n") + second.ask(b"y\n") == b"x\ny\n"
    wire.proxy.add(BlackHole(), link=wire.proxy.links[0])
    first.send(b"lost\n")
    assert second.ask(b"z\n") == b"z\n"
    assert wire.client().ask(b"new\n") == b"new\n"
    assert not first.hears()
    wire.proxy.wait_for(lambda: [link.up.dropped.messages for link in wire.proxy.links] == [1, 0, 0])


def test_the_target_changes_for_new_links(wire: Wire) -> None:
    old = wire.client()
    assert old.ask(b"x\n") == b"x\n"
    with Server(lambda text: text.upper()) as other:
        wire.proxy.target = other.address
        assert wire.client().ask(b"x\n") == b"X\n"
        assert old.ask(b"y\n") == b"y\n"
    assert wire.newcomer_is_reset(), "its target has gone"


def test_nothing_is_left_whatever_was_going_on(wire: Wire, tmp_path: Path) -> None:
    with leaks.watch(leaks.files(tmp_path)), ExitStack() as stack:
        server = stack.enter_context(Server())
        proxy = stack.enter_context(Proxy(server.address, splitter=splitters.lines))
        clients = [stack.enter_context(Client(proxy.port)) for _ in range(5)]
        assert clients[0].ask(b"x\n") == b"x\n"
        proxy.add(Latency(600), DOWN)
        hold = proxy.hold(UP, often=2)
        for client in clients:
            client.send(b"y\n")
        hold.await_held(2)
        proxy.add(Refuse())
    proxy.close()
    assert proxy.open_links == []


def test_a_splitter_that_fails_is_heard_of() -> None:
    with Server() as server:
        proxy = Proxy(server.address, splitter=splitters.resp)
        with Client(proxy.port) as client:
            client.send(b"$many\r\n")
            assert client.fate() == "eof"
        with pytest.raises(ExceptionGroup) as caught:
            proxy.close()
    assert "invalid literal" in str(caught.value.exceptions[0].exceptions[0])


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
