"""The state machine of a session and its connections, and the deadline of a session: against any history of heartbeats,
and against a leader that a follower informs only now and then."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Event, Garbled, Welcome
from dibs.backends.zookeeper.wire.session import LOST, WINDOW, Connection, PendingRequest, Phase, Session
from dibs.core.deadline import margin

PASSWORD = b"p" * 16
STAT = struct.pack("!qqqqiiiqiiq", *range(11))


def frame(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


def welcome(session: int = 77, timeout_ms: int = 9000) -> bytes:
    return frame(struct.pack("!iiqi", 0, timeout_ms, session, 16) + PASSWORD + b"\0")


def reply(xid: int, zxid: int = 1, error: int = 0, body: bytes = b"") -> bytes:
    return frame(struct.pack("!iqi", xid, zxid, error) + body)


def event(kind: int, path: str) -> bytes:
    return reply(codec.EVENT, -1, 0, struct.pack("!ii", kind, 3) + codec.text(path))


def up(session: Session | None = None, now: float = 100.0) -> Connection:
    connection = Connection(session or Session(30.0), now)
    connection.receive(welcome())
    assert connection.phase is Phase.UP
    return connection


def asked(connection: Connection, *requests: codec.Request) -> list[PendingRequest]:
    calls = [PendingRequest(request) for request in requests]
    connection.send(calls)
    return calls


def test_a_session_is_taken_up_as_the_server_says_and_again_with_the_last_zxid_seen() -> None:
    session = Session(30.0)
    first = Connection(session, 100.0)
    assert first.phase is Phase.GREETING
    assert first.greet() == codec.greeting(0, 30_000, 0, bytes(16))
    first.receive(welcome(session=77, timeout_ms=9000))
    assert first.phase is Phase.UP
    assert (session.id, session.password, session.timeout, session.over) == (77, PASSWORD, 9.0, False)
    assert session.deadline == 100.0 + 9.0 - margin(9.0)
    asked(first, codec.sync("/"), codec.sync("/"))
    first.receive(reply(1, zxid=500) + reply(2, zxid=4))
    first.end()
    second = Connection(session, 105.0)
    assert second.greet() == codec.greeting(500, 9000, 77, PASSWORD)
    second.receive(welcome())
    assert second.phase is Phase.UP
    assert session.deadline == 105.0 + 9.0 - margin(9.0)
    remains = Connection(session.remains(), 0.0)
    assert remains.greet() == codec.greeting(0, 9000, 77, PASSWORD), "enough to close it when it is over"


def test_another_session_than_ours_is_not_taken() -> None:
    session = Session(30.0)
    up(session)
    before = session.deadline
    again = Connection(session, 105.0)
    with pytest.raises(Garbled, match="another session"):
        again.receive(welcome(session=78))
    assert again.phase is Phase.GREETING
    assert (session.id, session.deadline) == (77, before)


def test_a_session_that_the_server_does_not_know_any_more_is_over() -> None:
    for reply in (welcome(session=0), welcome(timeout_ms=0), welcome(timeout_ms=-5)):
        session = Session(30.0)
        up(session)
        before = session.deadline
        again = Connection(session, 105.0)
        again.receive(reply)
        assert (again.phase, session.over, session.deadline) == (Phase.ENDED, True, before)


def test_answers_belong_to_the_requests_in_their_order() -> None:
    connection = up()
    first, second, third = asked(connection, codec.sync("/"), codec.exists("/a"), codec.delete("/b"))
    connection.receive(reply(1) + reply(2, 2, 0, STAT) + reply(3, 3, codec.NO_NODE))
    assert list(connection.arrived) == [first, second, third]
    assert [call.error for call in (first, second, third)] == [0, 0, codec.NO_NODE]
    assert isinstance(second.value, codec.Stat)
    assert (first.value, third.value) == (None, None)
    assert not connection.pending
    assert connection.session.zxid == 3


def test_requests_beyond_the_window_wait() -> None:
    """A heartbeat goes ahead of them; they are lost with the connection."""
    connection = up()
    calls = [PendingRequest(codec.sync("/")) for _ in range(WINDOW + 3)]
    sent = connection.send(calls)
    assert sent == b"".join(codec.encode(xid, codec.sync("/")) for xid in range(1, WINDOW + 1))
    beat = PendingRequest(codec.sync("/"))
    assert connection.send([beat], ahead=True) == codec.encode(WINDOW + 1, codec.sync("/"))
    assert connection.more() == b"", "no answer came, so there is no room"
    connection.receive(b"".join(reply(xid) for xid in range(1, 4)))
    assert connection.more() == b"".join(codec.encode(WINDOW + n, codec.sync("/")) for n in (2, 3))
    connection.receive(b"".join(reply(xid) for xid in range(4, WINDOW + 2)))
    assert beat.ended
    assert connection.more() == codec.encode(WINDOW + 4, codec.sync("/"))
    assert connection.more() == b""
    unsent = [PendingRequest(codec.sync("/")) for _ in range(WINDOW + 3)]
    connection.send(unsent)
    connection.end()
    assert list(connection.arrived)[-len(unsent) :] == unsent
    assert all(call.ended and call.error == LOST for call in unsent)


def test_a_reply_to_another_request_than_the_next_is_garbled() -> None:
    for xid in (2, 0, -3, 2**31 - 1, codec.AUTH, codec.SET_WATCHES):
        with pytest.raises(Garbled):
            up().receive(reply(xid))
        connection = up()
        first, _ = asked(connection, codec.sync("/"), codec.sync("/"))
        with pytest.raises(Garbled, match="another request"):
            connection.receive(reply(xid))
        assert not first.ended


def test_a_body_that_cannot_be_read_is_no_answer() -> None:
    connection = up()
    (call,) = asked(connection, codec.exists("/a"))
    with pytest.raises(Garbled):
        connection.receive(reply(1, body=STAT[:-1]))
    assert not call.ended
    connection.end()
    assert (call.error, call.value) == (LOST, None)


def test_numbers_of_requests() -> None:
    """Events and pings are not replies; some requests have a fixed number; the others restart before they overflow."""
    connection = up()
    login = PendingRequest(codec.auth("digest", b"a:b"), xid=codec.AUTH)
    again = PendingRequest(codec.set_watches(1, [], [], []), xid=codec.SET_WATCHES)
    plain = PendingRequest(codec.sync("/"))
    connection.send([login, again, plain])
    assert plain.xid == 1
    connection.receive(event(codec.DELETED, "/a") + reply(codec.PING, 900) + reply(codec.AUTH))
    connection.receive(reply(codec.SET_WATCHES) + reply(1, 7))
    assert list(connection.arrived) == [Event(codec.DELETED, "/a"), login, again, plain]
    assert connection.session.zxid == 7
    connection.xid = 2**31 - 3
    calls = asked(connection, *[codec.sync("/")] * 4)
    assert [call.xid for call in calls] == [2**31 - 2, 2**31 - 1, 1, 2]
    connection.receive(b"".join(reply(call.xid) for call in calls))
    assert all(call.error == codec.OK for call in calls)


def test_at_its_end_what_is_pending_is_lost_and_said_once() -> None:
    """Also after an end that was interrupted just before it removed a call from the list."""
    connection = up()
    first, second, third = asked(connection, codec.sync("/"), codec.sync("/"), codec.sync("/"))
    connection.receive(reply(1))
    second.error, second.ended = LOST, True
    connection.arrived.append(second)
    for _ in range(2):
        connection.end()
        assert list(connection.arrived) == [first, second, third]
        assert [(call.error, call.ended) for call in (first, second, third)] == [(codec.OK, True), *[(LOST, True)] * 2]
        assert connection.phase is Phase.ENDED


streams = st.lists(
    st.one_of(
        st.builds(reply, st.integers(-9, 9), st.integers(0, 99), st.sampled_from([0, -101, 5]), st.binary(max_size=90)),
        st.builds(event, st.integers(-2, 9), st.text("/ab", max_size=4)),
        st.builds(reply, st.integers(1, 9), body=st.just(struct.pack("!i", 0) + STAT)),
        st.builds(welcome, st.integers(-1, 2), st.sampled_from([9000, 0, -1, 2**31 - 1])),
        st.binary(max_size=30).map(frame),
        st.binary(max_size=30),
    ),
    max_size=12,
).map(b"".join)  # fmt: skip


def pieces(exchange: bytes, cuts: list[int]) -> Iterator[bytes]:
    begin = 0
    for end in (*sorted(cut % (len(exchange) + 1) for cut in cuts), len(exchange)):
        yield exchange[begin:end]
        begin = end


@given(streams, st.lists(st.integers(0, 999), max_size=9), st.booleans())
def test_any_bytes_in_any_pieces_end_every_call_once(exchange: bytes, cuts: list[int], greeting: bool) -> None:
    connection = Connection(Session(30.0), 100.0) if greeting else up()
    requests = [codec.sync("/"), codec.get("/a"), codec.children("/a"), codec.delete("/a"), codec.sasl(b"")]
    calls = asked(connection, *requests, codec.multi(requests[:1]), codec.create("/a", b"", codec.OPEN_ACL, 3))
    with suppress(Garbled):
        for piece in pieces(exchange, cuts):
            connection.receive(piece)
    assert len(connection.buffer) <= len(exchange)
    connection.end()
    ended = [item for item in connection.arrived if isinstance(item, PendingRequest)]
    assert ended == calls
    assert all(call.ended for call in calls)


@given(streams, st.lists(st.integers(0, 999), max_size=9))
def test_pieces_mean_what_the_whole_means(exchange: bytes, cuts: list[int]) -> None:
    def heard(parts: list[bytes]) -> tuple[object, ...]:
        connection = up()
        asked(connection, *[codec.children("/a")] * 4)
        garbled = False
        try:
            for part in parts:
                connection.receive(part)
        except Garbled:
            garbled = True
        said = [item if isinstance(item, Event) else (item.xid, item.error, item.value) for item in connection.arrived]
        return said, garbled, connection.phase, connection.session.zxid

    assert heard([exchange]) == heard(list(pieces(exchange, cuts)))


def taken_up(timeout: float, at: float) -> Session:
    session = Session(timeout)
    session.attached(Welcome(round(timeout * 1000), 1, PASSWORD), at)
    return session


def test_the_deadline_counts_from_the_last_but_one_beat() -> None:
    session = taken_up(9.0, at=100.0)
    sent = [100.0, 100.0]
    for _ in range(5):
        assert session.deadline == sent[-2] + 9.0 - margin(9.0)
        assert 9.0 / 4 <= session.beat_at - sent[-1] <= 9.0 / 3
        sent.append(session.beat_at)
        session.beaten(session.beat_at)
    for late in (sent[-2], sent[-3], 100.0):
        session.beaten(late)
    assert session.deadline == sent[-2] + 9.0 - margin(9.0), "late replies to old heartbeats do not count"


@given(
    st.sampled_from([0.4, 0.5, 1.0, 4.0, 9.0, 40.0]),
    st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans()), max_size=30),
)
def test_no_history_of_beats_gives_more_than_the_last_but_one_that_was_answered(
    timeout: float, history: list[tuple[float, bool]]
) -> None:
    """A heartbeat: the pause before it, in quarters of the timeout, and whether it was answered. It counts once another
    one, sent a quarter later or more, was answered."""
    session, sent = taken_up(timeout, at=1000.0), 1000.0
    answered = [1000.0]
    for pause, comes in history:
        sent += pause * timeout / 4
        if comes:
            session.beaten(sent)
            answered.append(sent)
        proven = max((at for at in answered if answered[-1] >= at + timeout / 4), default=1000.0)
        assert session.deadline <= proven + timeout - margin(timeout)


@given(
    timeout=st.sampled_from([1.0, 4.0, 9.0]),
    phase=st.floats(0.0, 1.0),
    pauses=st.lists(st.floats(0.0, 3.0), max_size=25),
    cut_after=st.integers(0, 25),
)
def test_the_leader_never_ends_a_session_before_its_own_deadline(
    timeout: float, phase: float, pauses: list[float], cut_after: int
) -> None:
    """A server reports its sessions to the leader every half tick; a tick is at most half a timeout. The leader answers
    a heartbeat; then the two are cut off from each other, just before the next report."""
    half_tick = timeout / 4
    session, now = taken_up(timeout, at=100.0), 100.0
    heard_at = [100.0]
    for pause in pauses[:cut_after]:
        now += pause * half_tick
        heard_at.append(now)
        session.beaten(now)
    reported_at = 100.0 + phase * half_tick
    reported_at += (now - reported_at) // half_tick * half_tick
    leader_knows = max((at for at in heard_at if at <= reported_at), default=100.0)
    assert session.deadline < leader_knows + timeout


def free_replies(xids: list[int]) -> tuple[list[bytes], list[int]]:
    replies = [reply(xids[0], 7, 0, codec.text("/a/lock-0000000001") + STAT), reply(xids[1], 8, 0, b"\0\0\0\0" + STAT)]
    return replies, [len(one) for one in replies]


@given(cuts=st.lists(st.integers(0, 250), max_size=3), oddity=st.sampled_from(["", "event", "error", "xid", "behind"]))
def test_replies_are_taken_as_they_are_or_received_as_always(cuts: list[int], oddity: str) -> None:
    connection = up()
    calls = asked(connection, codec.create("/a/lock-", b"", codec.OPEN_ACL, 3), codec.children("/a"))
    replies, sizes = free_replies([calls[0].xid, calls[1].xid + (oddity == "xid")])
    if oddity == "error":
        replies[1] = reply(calls[1].xid, 8, codec.NO_NODE)
    pieces = [event(codec.DELETED, "/b")] * (oddity == "event") + replies + [reply(codec.PING)] * (oddity == "behind")
    exchange = b"".join(pieces)
    ends = [0, *sorted(min(cut, len(exchange)) for cut in cuts), len(exchange)]
    taken: bytes | None = b""
    with pytest.raises(Garbled) if oddity == "xid" else nullcontext():
        for start, end in pairwise(ends):
            if taken == b"":
                taken = connection.receive_now(exchange[start:end], calls, sizes)
            else:
                connection.receive(exchange[start:end])
    if oddity == "xid":
        assert not calls[1].ended
        return
    assert [call.ended for call in calls] == [True, True]
    assert not connection.pending
    assert connection.session.zxid == 8
    if taken:
        assert (taken, oddity) == (b"".join(replies), "" if oddity != "behind" else oddity)
    else:
        errors = [0, codec.NO_NODE if oddity == "error" else 0]
        assert [call.error for call in calls] == errors
        assert [item for item in connection.arrived if isinstance(item, PendingRequest)] == calls
