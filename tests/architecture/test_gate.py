"""The gate repeats a failed test alone, and tells a flaky test from one that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gate


@pytest.mark.parametrize(
    ("repeats", "status", "last"),
    [([True, True], 0, "GATE: 1 flaky: a"), ([True, False], 1, "GATE: failed: a"), ([False], 1, "GATE: failed: a")],
)
def test_two_passes_alone_make_a_failure_flaky(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], repeats: list[bool], status: int, last: str
) -> None:
    left, flaky = iter(repeats), tmp_path / "flaky.jsonl"
    assert gate.judge({"a": "AssertionError"}, lambda _: next(left), flaky) == status
    assert capsys.readouterr().out.splitlines() == ["GATE: again, alone: a", last]
    assert next(left, None) is None, "not every repeat was made"
    written = [json.loads(line) for line in flaky.read_text().splitlines()] if flaky.exists() else []
    assert [(line["test"], line["error"]) for line in written] == ([("a", "AssertionError")] if status == 0 else [])


def test_without_a_failure_nothing_is_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate.judge({}, pytest.fail, tmp_path / "flaky.jsonl") == 0
    assert capsys.readouterr().out == "GATE: passed, nothing flaky\n"
