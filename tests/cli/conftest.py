"""The fixture `cli`: a machine with a fresh store, on which no process is left however the test went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    try:
        yield made
    finally:
        made.close()
