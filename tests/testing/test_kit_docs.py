"""docs/testing-your-code.md: each of its blocks is a test file that passes, or fails where it says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dibs.testing.kit  # noqa: F401  (a run within this process would forget what it was the first to import)

pytest_plugins = ["pytester"]
PAGE = Path(__file__).parents[2] / "docs" / "testing-your-code.md"
BLOCKS = re.findall(r"(<!-- fails: .+ -->\n)?```python\n(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SAID = re.search(r'^```text\n("settle".+?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_each_block_is_a_test_file(pytester: pytest.Pytester) -> None:
    assert len(BLOCKS) >= 8
    pytester.makepyfile(**{f"test_block_{number}": code for number, (_, code) in enumerate(BLOCKS)})
    plugins = ("no:dibs", "no:asyncio", "no:cacheprovider", "dibs.testing.fixtures")
    result = pytester.runpytest_inprocess(*(word for plugin in plugins for word in ("-p", plugin)))
    tests = [code.count("\ndef test_") + code.startswith("def test_") for _, code in BLOCKS]
    failing = [number for number, (fails, _) in enumerate(BLOCKS) if fails]
    assert min(tests) > 0
    assert len(failing) == 1
    result.assert_outcomes(failed=tests[failing[0]], passed=sum(tests) - tests[failing[0]])
    result.stdout.fnmatch_lines([f"FAILED test_block_{failing[0]}.py::*"])
    assert SAID is not None
    shown = re.sub(r"token \d+", "token N", result.stdout.str())
    assert re.sub(r"token \d+", "token N", SAID.group(1)) in shown
