"""Fixtures: machines with a fresh store, on which no process is left however the test went. `cli` is for commands that
are run and looked at; `scene` for processes that are killed, stopped and found again; `shell` is one at a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import cli
from cli.terminals import Shell
from cli.wrapped import Scene
from process.guarded import guarded_directory

__all__ = ["cli", "guarded_directory"]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


@pytest.fixture
def shell(scene: Scene) -> Iterator[Shell]:
    with Shell(scene) as made:
        yield made
