"""What the proxy does to whole links, on real sockets, and its counters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab import leaks, splitters
from lab.faults import BlackHole, Latency, Refuse, Slam, Stall
from lab.peers import Client, Server
from lab.proxy import DOWN, UP, Proxy
from lab.wire import Wire


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


def test_cut_now(wire: Wire) -> None:
    client = wire.client()
    assert client.ask(b"x\n") == b"x\n"
    wire.proxy.cut()
    assert client.fate() == "eof"
    wire.server.peer().await_fate("eof")


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


def test_many_links(wire: Wire) -> None:
    wire.proxy.add(Latency(0.01, jitter=0.05))
    clients = [wire.client() for _ in range(100)]
    for n, client in enumerate(clients):
        client.send(b"%d\n" % n)
    for n, client in enumerate(clients):
        assert client.receive(len(b"%d\n" % n)) == b"%d\n" % n
    assert len(wire.proxy.open_links) == 100
    assert wire.proxy.total(UP, "passed") == (100, 290)
    wire.proxy.reset()
    assert {client.fate() for client in clients} == {"reset"}


def test_much_data(wire: Wire) -> None:
    with Proxy(wire.server.address) as plain, Client(plain.port) as client:
        text = bytes(range(256)) * 4000
        assert client.ask(text) == text
        plain.wait_for(lambda: plain.total(DOWN, "passed")[1] == len(text))


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


def test_waiting_in_vain_tells_what_did_happen(wire: Wire) -> None:
    assert wire.client().ask(b"x\n") == b"x\n"
    wire.proxy.wait_for(lambda: wire.proxy.total(DOWN, "passed") == (1, 2))
    with pytest.raises(AssertionError, match=r"a held one: not within 0.01 s; .*'up passed': \(1, 2\)"):
        wire.proxy.wait_for(lambda: False, within=0.01, what="a held one")
