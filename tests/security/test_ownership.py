"""Ownership: only the client that made a claim can end it, and nobody else knows or repeats its id."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dibs.testing.contract.seats import Seat

PROGRAM = Path(__file__).with_name("clones.py")


@pytest.mark.parametrize(("scenario", "count"), [("forked", 16), ("cloned", 8)])
def test_ids_differ(scenario: str, count: int) -> None:
    """After forks, and in a clone of the machine that no hook saw: equal ids are one claim to a store, and two holders
    of it."""
    command = [sys.executable, str(PROGRAM), scenario]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=55, check=True).stdout.split()
    assert len(found) == len(set(found)) == count


def test_a_guessed_id_ends_nothing(ana: Seat, bob: Seat) -> None:
    """Nor does one that differs in one bit, or that of an earlier claim: as a leave, a renewal and an amendment."""
    before, _ = ana.joined()
    ana.leave(before)
    held, standing = ana.joined()
    guess = bob.claim()
    guess.asked, guess.ticket = True, standing.ticket
    for bit in (0, 1, 7, 8, 63, 64, 120, 127):
        guess.id = (int.from_bytes(held.id, "big") ^ 1 << bit).to_bytes(16, "big")
        bob.leave(guess)
        assert bob.look(guess) is None
        bob.amend(guess, 0)
    for wrong in (b"", held.id[:15], held.id + b"\0", bytes(16), b"\xff" * 16, before.id):
        guess.id = wrong
        bob.leave(guess)
    ana.leave(before)
    assert ana.holders() == [standing.ticket]
    after = ana.look(held)
    assert after is not None
    assert after.holds
