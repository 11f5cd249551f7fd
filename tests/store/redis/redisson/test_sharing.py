"""One name, Java and Python: each waits for the other, gets it, and never beside it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lab.redisson import PATIENCE, Redisson
from store.redis.redisson.peers import (
    FAIR,
    FENCED,
    KINDS,
    LOCK,
    PERMITS,
    RLOCK,
    SEMAPHORE,
    WRITE,
    Kind,
    Raw,
    take_turns,
)
from store.sides import APIS, Python, Shift, hand_overs, overlaps, python

EACH = [pytest.param(api, kind, id=f"{kind}-{api}") for kind in KINDS for api in APIS]
ENOUGH = 200


@pytest.mark.parametrize(("side", "kind"), EACH, indirect=["side"])
def test_each_waits_for_the_other(java: Redisson, side: Python, raw: Raw, name: str, kind: Kind) -> None:
    take_turns(java, side, raw, name, kind, side.client())
    theirs = kind.java(java, name)
    assert theirs.take(), "and Java gets it again"
    theirs.give()
    assert raw.holders(name) == {} if kind not in (SEMAPHORE, PERMITS) else raw.client.get(raw.key(name)) == b"1"


@pytest.mark.gate
@pytest.mark.parametrize("kind", [LOCK, RLOCK, FENCED, WRITE, SEMAPHORE, PERMITS], ids=str)
def test_hand_overs_and_never_two_at_once(java: Redisson, url: str, name: str, kind: Kind) -> None:
    shift = Shift(lambda turns: hand_overs(turns) >= ENOUGH or len(turns) >= 20 * ENOUGH)
    with python("blocking", url) as threads, python("aio", url) as tasks, ThreadPoolExecutor(2) as workers:
        first = threads.take(kind.ours(threads.client(), name))
        working: list[Future[None]] = [
            side.works(shift, kind.ours(side.client(), name), order=lambda _: 0) for side in (threads, tasks)
        ]
        working += [workers.submit(kind.java(java, name).turns, shift) for _ in range(2)]
        threads.do(first.release)
        for each in working:
            each.result(3 * PATIENCE)
    assert overlaps(shift.turns) == []
    assert {turn.who for turn in shift.turns} == {"java", "python"}
    assert hand_overs(shift.turns) >= ENOUGH


@pytest.mark.gate
def test_hand_overs_of_a_fair_lock_are_in_order(java: Redisson, url: str, raw: Raw, name: str) -> None:
    """Each holder notes the head of the queue, which must be the next holder."""
    shift = Shift(lambda turns: hand_overs(turns) >= ENOUGH)
    notes: list[tuple[str, str | None]] = []

    def note(*_: object) -> int:
        (holder,) = raw.holders(name)
        notes.append((holder, next(iter(raw.queue(name)), None)))
        return len(notes)

    with python("blocking", url) as threads, python("aio", url) as tasks, ThreadPoolExecutor(2) as workers:
        first = threads.take(FAIR.ours(threads.client(), name))
        working: list[Future[None]] = []
        for count, side in enumerate((threads, tasks)):  # the languages take turns from the beginning
            working += [side.works(shift, FAIR.ours(side.client(), name), order=note)]
            raw.wait_for(FAIR, name, 2 * count + 1)
            working += [workers.submit(FAIR.java(java, name).turns, shift, note)]
            raw.wait_for(FAIR, name, 2 * count + 2)
        threads.do(first.release)
        for each in working:
            each.result(3 * PATIENCE)
    assert hand_overs(shift.turns) >= ENOUGH
    assert overlaps(shift.turns) == []
    assert [turn.order for turn in sorted(shift.turns)] == list(range(1, len(notes) + 1))
    following = [holder for holder, _ in notes[1:]]
    wrong = [at for at, (_, head) in enumerate(notes[:-1]) if head is not None and head != following[at]]
    assert wrong == [], "who stood first was served next"
    assert sum(head is not None for _, head in notes) > ENOUGH / 2, "there was a queue"


@pytest.mark.parametrize("side", APIS, indirect=True)
def test_readers_share_and_a_writer_waits(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    client = side.client()
    theirs, ours = java.read(name), client.rwlock(name)
    assert theirs.take() is not None
    held = side.take(ours.read)
    assert raw.client.hget(raw.key(name), "mode") == b"read"
    assert side.tries(side.client().rwlock(name).write) is None
    assert java.write(name).take(0) is None
    writer = side.takes(side.client().rwlock(name).write)
    raw.wait_for(WRITE, name, 1)
    theirs.give()
    assert not writer.done()
    assert raw.holders(name).keys() == {side.inspect(name).holders[0].owner}
    side.do(held.release)
    hold = writer.result(PATIENCE)
    assert java.read(name).take(0) is None
    side.do(hold.downgrade)
    assert java.read(name).take(0) is not None, "the writer is a reader now"
    side.do(hold.release)


def test_the_token_of_a_fenced_lock_is_one_sequence(java: Redisson, side: Python, name: str) -> None:
    theirs, tokens = java.fenced(name), []
    for _ in range(3):
        held = theirs.take()
        assert held is not None
        tokens.append(held.token)
        assert side.inspect(name).holders[0].token == held.token
        theirs.give()
        hold = side.take(side.client().lock(name, fenced=True))
        tokens.append(hold.token)
        assert theirs.token() == hold.token
        side.do(hold.release)
    assert tokens == list(range(1, 7))
