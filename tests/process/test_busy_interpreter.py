"""Renewal depends neither on the event loop nor on an interpreter that other threads leave idle."""

from __future__ import annotations

import pytest

from process.children import Crew

LEASE = 1.0


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["blocked_loop", "busy_thread"])
def test_a_busy_interpreter_keeps_its_lock(crew: Crew, scenario: str) -> None:
    program, other = crew.start("loops", scenario, crew.url, LEASE), crew.worker(LEASE)
    program.hear("held")
    tries = 0
    while program.silent():
        assert other.tries("a")[0] == "busy"
        tries += 1
    assert program.hear("after") == ["False", "True"]
    assert tries > 20
    assert other.tries("a")[0] == "busy"
    program.tell("go")
    program.hear("left")
    assert other.take("a", 0)
    assert program.end() == 0
    assert program.errors == ""
