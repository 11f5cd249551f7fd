"""Renewal depends neither on the event loop nor on an interpreter that other threads leave idle."""

from __future__ import annotations

import pytest

from process.children import STEADY, Crew, until


@pytest.mark.alone
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        ("sqlite", "blocked_loop"),
        pytest.param("sqlite", "busy_thread", marks=pytest.mark.gate),
        pytest.param("zookeeper", "blocked_loop", marks=pytest.mark.gate),
        pytest.param("redis", "blocked_loop", marks=pytest.mark.gate),
    ],
    indirect=["crew"],
)
def test_a_busy_interpreter_keeps_its_lock(crew: Crew, scenario: str) -> None:
    program, other = crew.start("loops", scenario, crew.url, crew.lasting), crew.worker(STEADY)
    program.hear("held")
    said: list[str] = []

    def over() -> bool:
        word, *rest = other.tries("a")
        said.append(f"{word} {rest[0]}" if word == "failed" else word)
        return not program.silent()

    until(over, what="the end of the busy time")
    assert program.hear("after") == ["False", "True"]
    assert set(said) <= {"busy"}
    assert other.tries("a")[0] == "busy"
    program.tell("go")
    program.hear("left")
    assert other.take("a", 0)
    assert program.end() == 0
    assert program.errors == ""
