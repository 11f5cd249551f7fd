"""The fixtures `dibs_client` and `dibs_aio_client`: see kit.py, and docs/testing-your-code.md.

Both are plain fixtures: they work with asyncio.run, pytest-asyncio and anyio. A test that uses both has one kit.
A test in which two holders overlapped fails.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


@pytest.fixture
def dibs_client(request: pytest.FixtureRequest) -> Any:
    """A `dibs.Client` of an empty memory store, with controls: see `KitClient`.

    During the test `DIBS_URL` is `memory://`, so the code under test gets the same store. The test fails if two
    holders overlapped.
    """
    return _kit(request).client()


@pytest.fixture
def dibs_aio_client(request: pytest.FixtureRequest) -> Any:
    """A `dibs.aio.Client` of an empty memory store, with controls that are not awaited: see `KitAioClient`.

    A test may use both fixtures: they share the store, the clock and the controls.
    """
    return _kit(request).aio_client()


_KITS: pytest.StashKey[Any] = pytest.StashKey()


def _kit(request: pytest.FixtureRequest) -> Any:
    """The kit of this test. It lives from the first fixture that needs it until the end of the test."""
    from dibs.testing.kit import Kit  # noqa: PLC0415  (pytest loads this module in every run)

    node, plugins = request.node, request.config.pluginmanager
    if _KITS not in node.stash:
        kit = node.stash[_KITS] = Kit()
        judge = _Judge(node, kit)
        plugins.register(judge)

        def end() -> None:
            plugins.unregister(judge)
            del node.stash[_KITS]
            kit.end()
            judge.fail()

        node.addfinalizer(end)
        kit.begin()
    return node.stash[_KITS]


class _Judge:
    """Fails the test if holders overlapped: in its call if possible, else in its teardown."""

    def __init__(self, item: pytest.Item, kit: Any) -> None:
        self._item = item
        self._kit = kit

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        if item is not self._item:
            return (yield)
        try:
            yield
        except BaseException:
            self._note()
            raise
        self.fail()
        return None

    def _note(self) -> None:
        """Add the overlaps to the report of a test that failed already: they may be the cause."""
        if text := self._verdict():
            self._item.add_report_section("call", "dibs", text)
            self._kit.record.overlaps.clear()

    def fail(self) -> None:
        text = self._verdict()
        self._kit.record.overlaps.clear()
        if text:
            pytest.fail(text, pytrace=False)

    def _verdict(self) -> str:
        overlaps = self._kit.record.overlaps
        if not overlaps:
            return ""
        text = "\n".join(str(overlap) for overlap in overlaps)
        return f"{text}\nA test that expects this looks at `overlaps` of its client and clears it."
