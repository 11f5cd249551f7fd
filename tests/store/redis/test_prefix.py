"""A prefix is a text like any other, whatever signs are in it."""

from __future__ import annotations

from pathlib import Path

import dibs
from lab.servers.shared_redis import fresh


def test_a_listing_below_a_prefix_that_looks_like_a_pattern(tmp_path: Path) -> None:
    url = fresh(tmp_path).partition("?")[0]
    with (
        dibs.connect(url, prefix="app[1]*/") as client,
        dibs.connect(url, prefix="app1-other/") as other,
        client.lock("ours", timeout=5),
        other.lock("theirs", timeout=5),
    ):
        assert [info.name for info in client.locks()] == ["ours"]
