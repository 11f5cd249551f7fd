"""The demo runs in a directory and an environment of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.plays import environment_in
from process.guarded import guarded_directory

__all__ = ["guarded_directory"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return environment_in(tmp_path)
