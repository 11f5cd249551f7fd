"""What scripts/test relies on in the tools that it is run with."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("together")
def test_a_group_goes_to_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist marks a group in its tests' names. With a pytest that it does not know yet it does not, and says
    nothing: servers are then started for each test, and what must run alone runs side by side."""
    grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@together") == grouped
