"""What waiting costs: no connection of those who hold, few statements, and the same for each hand-off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing

import dibs
from dibs.core.line import YOURS
from dibs.testing.contract.seats import Seat, until
from lab.surface import clock
from store.mysql.rows import Raw

CONNECTIONS = 5
WAITERS = 20


def test_many_who_wait_and_one_who_works(url: str, raw: Raw) -> None:
    """In one client with few connections: the holder is renewed and works on, and all get it in turn."""
    with closing(dibs.connect(f"{url}&connections={CONNECTIONS}", lease=15)) as client:
        before = len(raw.others())
        hold, held = client.lock("busy").acquire(), client.lock("other")
        assert hold is not None
        tokens: list[int] = []

        def wait() -> None:
            with client.lock("busy", timeout=60) as mine:
                tokens.append(mine.token)

        threads = [threading.Thread(target=wait) for _ in range(WAITERS)]
        for thread in threads:
            thread.start()
        until(lambda: len(client.inspect("busy").waiters) == WAITERS, 60)
        for _ in range(20):
            with held:
                hold.check()
        used = len(raw.others()) - before
        print(f"figure: {WAITERS} who wait and one who works: {used} connections")
        assert used <= CONNECTIONS + 3, "the keeper's, and the ear"
        asked, begun = calls(raw), clock()
        until(lambda: hold.remaining < 11, 60)
        until(lambda: hold.remaining > 12, 60)
        each = (calls(raw) - asked) / (clock() - begun)
        print(f"figure: {WAITERS} who wait: {each:.1f} statements a second of all of them together")
        assert each < 10, "of all of them together"
        hold.release()
        for thread in threads:
            thread.join(60)
        assert tokens == sorted(tokens)
        assert len(tokens) == WAITERS


def calls(raw: Raw) -> int:
    return int(raw.ask("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


def test_a_hand_off_costs_the_same_however_many_wait(seats: Callable[[], Seat], raw: Raw) -> None:
    figures = {}
    for waiters in (10, 100):
        giver, taker = seats(), seats()
        name = f"line of {waiters}"
        held, _ = giver.joined(name=name)
        first, _ = taker.joined(name=name)
        with ExitStack() as stack:
            others = [taker.joined(name=name)[0] for _ in range(waiters)]
            stack.callback(lambda others=others, taker=taker: [taker.leave(claim) for claim in others])
            taker.told(first)  # it listens
            before = statements(raw)
            giver.leave(held)
            assert taker.hears(first) is YOURS
            figures[waiters] = statements(raw) - before
            taker.leave(first)
    print(f"figure: statements for one hand-off, within routines too: {figures}")
    assert abs(figures[10] - figures[100]) <= 12


def statements(raw: Raw) -> int:
    """Those within routines, too."""
    return int(raw.ask("SHOW GLOBAL STATUS LIKE 'Queries'")[0][1])


def test_claims_are_renewed_together(seat: Seat, raw: Raw) -> None:
    claims = [seat.joined(name=f"n{number}")[0] for number in range(100)]
    before = calls(raw)
    assert all(standing is not None and standing.holds for standing in seat.renew(*claims))
    assert calls(raw) - before <= 3
    for claim in claims:
        seat.leave(claim)
