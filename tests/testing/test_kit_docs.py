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


@pytest.mark.parametrize(("fails", "code"), BLOCKS)
def test_a_block_is_a_test_file(pytester: pytest.Pytester, fails: str, code: str) -> None:
    pytester.makepyfile(code)
    plugins = ("no:dibs", "no:asyncio", "no:cacheprovider", "dibs.testing.fixtures")
    result = pytester.runpytest_inprocess(*(word for plugin in plugins for word in ("-p", plugin)))
    tests = code.count("\ndef test_") + code.startswith("def test_")
    assert tests > 0
    result.assert_outcomes(**{"failed" if fails else "passed": tests})
    if fails:
        assert SAID is not None
        shown = re.sub(r"token \d+", "token N", result.stdout.str())
        assert re.sub(r"token \d+", "token N", SAID.group(1)) in shown


def test_the_page_has_blocks() -> None:
    assert len(BLOCKS) >= 8
    assert sum(bool(fails) for fails, _ in BLOCKS) == 1
