"""Times as a user gives them, and what an answer of a store is worth."""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

from datetime import timedelta
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.deadline import LONGEST_LEASE, lease_of, left_for, margin, patience, seconds, valid_until


@given(st.floats(0.5, 1e6), st.floats(0, 1e9))
def test_the_own_deadline_passes_before_the_stores(left: float, sent_at: float) -> None:
    assert valid_until(sent_at, left) <= sent_at + left - 0.05 + 1e-6
    assert valid_until(sent_at, left) <= sent_at + left * 0.9 + 1e-6


@given(st.floats(0, 0.5))
def test_what_is_nearly_over_counts_for_less_than_nothing(left: float) -> None:
    assert valid_until(0.0, left) == pytest.approx(left - 0.05)


INSTANTS = st.floats(0, 1e9)
"""Readings of a clock that counts seconds from boot, for thirty years."""


@given(INSTANTS, st.floats(-0.05, 1e6) | st.floats(0.44, 0.46))
def test_what_is_left_of_a_known_deadline_gives_it_back_and_never_a_later_one(sent_at: float, own: float) -> None:
    until = sent_at + own
    left = left_for(until, sent_at)
    assert left >= 0
    if until - sent_at >= -0.05:
        assert until - 4e-6 < valid_until(sent_at, left) <= until or left == 0


@given(INSTANTS, st.floats(0, 1e6))
def test_what_is_left_of_an_answer_is_what_it_said(sent_at: float, left: float) -> None:
    assert left_for(valid_until(sent_at, left), sent_at) == pytest.approx(left, abs=1e-5, rel=1e-9)


@given(INSTANTS, st.floats(0, 1e6))
def test_of_a_deadline_that_is_past_nothing_is_left_that_counts(sent_at: float, ago: float) -> None:
    left = left_for(sent_at - ago, sent_at)
    assert 0 <= left <= 0.05
    assert valid_until(sent_at, left) <= sent_at


def test_the_margin_is_a_tenth_and_at_least_50_ms() -> None:
    assert margin(30.0) == pytest.approx(3.0)
    assert margin(0.5) == margin(0.1) == 0.05


def test_times() -> None:
    for time, meant in ((5, 5.0), (0.5, 0.5), (timedelta(minutes=2), 120.0), (0, 0.0)):
        assert seconds(time, "timeout") == meant
        assert isinstance(seconds(time, "timeout"), float)
    assert patience(None) is None
    assert patience(0) == 0.0


def test_what_is_no_time_is_refused() -> None:
    for bad in (nan, inf, -inf, -1, -0.001, timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="timeout"):
            seconds(bad, "timeout")
    for other in ("5", True, False, None, 5j, [], object()):
        with pytest.raises(TypeError, match="timeout"):
            seconds(other, "timeout")
    try:
        assert seconds(10**400, "timeout") > 0
    except ValueError as error:
        assert "timeout" in str(error)


def test_leases_are_neither_too_short_nor_longer_than_stores_count_exactly() -> None:
    assert lease_of(0.5) == 0.5
    with pytest.raises(ValueError, match=r"lease must be at least 0\.5 s"):
        lease_of(0.49)
    assert lease_of(LONGEST_LEASE) == LONGEST_LEASE
    for lease in (1.01 * LONGEST_LEASE, 1e13, 1e300, timedelta.max):
        with pytest.raises(ValueError, match=r"lease must be at most 1e\+09 s"):
            lease_of(lease)
