"""A full disk and one that can only be read: never a false grant, and all works again when there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from store import small_disks


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("scenario", ["full", "readonly"])
def test_a_small_disk(tmp_path: Path, scenario: str) -> None:
    if reason := small_disks.cannot_mount(tmp_path):
        pytest.skip(f"no mount namespace of one's own here: {reason}")
    said = small_disks.run(Path(__file__).with_name("small_disk.py"), scenario, place=tmp_path)
    print("figure:", scenario, said.strip())
    assert said.startswith("refused")
