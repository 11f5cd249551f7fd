"""A full disk: never a false grant, and all works again when there is room."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from lab.servers.programs import require
from store import small_disks


@pytest.mark.early
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_full_disk() -> None:
    """In a directory of its own: what lies below pytest's is closed to the user that the server runs as."""
    require("postgresql")
    with tempfile.TemporaryDirectory(prefix="dibs-") as place:
        if reason := small_disks.cannot_mount(Path(place)):
            pytest.skip(f"no mount namespace of one's own here: {reason}")
        Path(place).chmod(0o755)
        said = small_disks.run(Path(__file__).with_name("small_disk.py"), place=Path(place))
    print("figure:", said.strip())
    assert said.startswith("refused")
