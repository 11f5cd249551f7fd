"""Broken locks: each is the straw lock with one part done wrong, and names the checker that must convict it.

`broken:NAME:PATH` is the URL of one. Real lock libraries have made these mistakes. `sound` must be acquitted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from lab.broken.straw import POLL, SOUND, Parts, Row, Straw, StrawHold, sound_leave
from lab.surface import Want, clock


@dataclass(frozen=True)
class Broken:
    """The parts of a lock, and the class of violation of which it must be convicted."""

    parts: Parts
    convicted_of: str


def leave_without_compare(straw: Straw, want: Want, place: int) -> None:
    """Remove the first claim, even if it is another one by now."""
    with straw.step() as db:
        db.execute("DELETE FROM line WHERE place = (SELECT min(place) FROM line WHERE name = ?)", (want.target.name,))
        db.execute("DELETE FROM line WHERE place = ? AND NOT holds", (place,))


def keep_whatever_the_store_says(hold: StrawHold) -> None:
    sent = clock()
    if hold.want.renew and hold.renew_at <= sent:
        with hold.straw.step() as db:
            db.execute("UPDATE line SET until = ? WHERE place = ?", (clock() + hold.straw.lease, hold.place))
        hold.deadline = hold.straw.parts.deadline(sent, clock(), hold.straw.lease)
        hold.renew_at = sent + hold.straw.lease / 3


def deadline_from_the_reply(sent: float, answered: float, lease: float) -> float:
    return answered + 0.9 * lease


def deadline_longer_than_the_lease(sent: float, answered: float, lease: float) -> float:
    return sent + 1.5 * lease


def fits_if_nobody_holds_now(before: list[Row], own: Row) -> bool:
    """Compare only with holders: the first to poll wins."""
    return sum(row.weight for row in before if row.holds) + own.weight <= own.capacity


def admit_in_any_order(straw: Straw, want: Want, place: int) -> bool | None:
    """Regard the claims behind, too, as a lock without a queue does."""
    with straw.step() as db:
        now = clock()
        rows = straw.rows(want.target.name)
        for row in rows:
            if straw.parts.gone(row, now, straw.lease):
                db.execute("DELETE FROM line WHERE place = ?", (row.place,))
        alive = [row for row in rows if not straw.parts.gone(row, now, straw.lease)]
        own = next((row for row in alive if row.place == place), None)
        if own is None:
            return None
        holds = straw.parts.fits([row for row in alive if row is not own], own)
        db.execute("UPDATE line SET until = ?, holds = ? WHERE place = ?", (now + straw.lease, holds, place))
        return holds


def pause_longer(straw: Straw, place: int, end: float) -> None:
    """Backs off, while newcomers look at once."""
    time.sleep(20 * POLL)


def admit_by_looking_first(straw: Straw, want: Want, place: int) -> bool | None:
    """Looks, and then takes: between the two anybody may do the same."""
    now = clock()
    alive = [row for row in straw.rows(want.target.name) if not straw.parts.gone(row, now, straw.lease)]
    own = next((row for row in alive if row.place == place), None)
    if own is None:
        return None
    holds = straw.parts.fits([row for row in alive if row is not own], own)
    time.sleep(straw.dice.uniform(0, POLL))
    with straw.step() as db:
        for row in straw.rows(want.target.name):
            if straw.parts.gone(row, clock(), straw.lease):
                db.execute("DELETE FROM line WHERE place = ?", (row.place,))
        db.execute("UPDATE line SET until = ?, holds = ? WHERE place = ?", (clock() + straw.lease, holds, place))
    return holds


def token_of_the_grant(straw: Straw, place: int) -> int:
    with straw.step() as db:
        number = db.execute("INSERT INTO grants DEFAULT VALUES").lastrowid
    assert number is not None
    return number


def gone_before_it_expired(row: Row, now: float, lease: float) -> bool:
    return row.until - 0.6 * lease <= now


def fits_one_too_many(before: list[Row], own: Row) -> bool:
    return sum(row.weight for row in before) + own.weight <= own.capacity + 1


def fits_beside_readers(before: list[Row], own: Row) -> bool:
    """A writer asks for other writers only."""
    return sum(row.weight for row in before if row.weight > 1 or own.weight == 1) + own.weight <= own.capacity


def leave_and_wake_the_next_at_times(straw: Straw, want: Want, place: int) -> None:
    held = any(row.place == place and row.holds for row in straw.rows(want.target.name))
    sound_leave(straw, want, place)
    waiting = next((row for row in straw.rows(want.target.name) if not row.holds), None)
    if held and waiting is not None and straw.dice.random() < 0.5:
        straw.db.execute("INSERT OR IGNORE INTO woken VALUES (?)", (waiting.place,))


def pause_until_woken(straw: Straw, place: int, end: float) -> None:
    """Nobody but the waker makes it look again; its claim is kept alive meanwhile."""
    while clock() < end and not straw.db.execute("DELETE FROM woken WHERE place = ?", (place,)).rowcount:
        time.sleep(POLL)
        straw.db.execute("UPDATE line SET until = ? WHERE place = ?", (clock() + straw.lease, place))


def leave_a_row_behind(straw: Straw, want: Want, place: int) -> None:
    """It weighs nothing any more, so nobody notices."""
    with straw.step() as db:
        db.execute("UPDATE line SET weight = 0, holds = 0, until = 1e18 WHERE place = ?", (place,))


UNFAIR = replace(SOUND, admit=admit_in_any_order, fits=fits_if_nobody_holds_now, pause=pause_longer)
BROKEN = {
    "delete-without-compare": Broken(replace(SOUND, leave=leave_without_compare), "overlap"),
    "renewal-ignores-errors": Broken(replace(SOUND, keep=keep_whatever_the_store_says), "overlap"),
    "lease-from-the-reply": Broken(replace(SOUND, deadline=deadline_from_the_reply), "overlap"),
    "validity-beyond-the-lease": Broken(replace(SOUND, deadline=deadline_longer_than_the_lease), "overlap"),
    "grant-before-expiry": Broken(replace(SOUND, gone=gone_before_it_expired), "overlap"),
    "capacity-plus-one": Broken(replace(SOUND, fits=fits_one_too_many), "overlap"),
    "write-beside-readers": Broken(replace(SOUND, fits=fits_beside_readers), "overlap"),
    "check-then-set": Broken(replace(SOUND, admit=admit_by_looking_first, fits=fits_if_nobody_holds_now), "overlap"),
    "unfair-by-ticket": Broken(UNFAIR, "fifo"),
    "unfair-by-sight": Broken(replace(UNFAIR, token=token_of_the_grant), "fifo"),
    "tokens-repeat": Broken(replace(SOUND, token=lambda straw, place: place // 2), "token"),
    "tokens-restart": Broken(replace(SOUND, token=lambda straw, place: place % 50), "token"),
    "lost-wake-up": Broken(
        replace(SOUND, leave=leave_and_wake_the_next_at_times, pause=pause_until_woken), "liveness"
    ),
    "row-left-behind": Broken(replace(SOUND, leave=leave_a_row_behind), "leak"),
}  # fmt: skip


def connect(url: str, lease: float, seed: str) -> Straw:
    _, name, path = url.split(":", 2)
    return Straw(Path(path), lease, seed, SOUND if name == "sound" else BROKEN[name].parts)
