"""scripts/servers where there is nothing to do, and where nothing can be done."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.servers.programs import NEEDS, require

SCRIPT = Path(__file__).parents[2] / "scripts" / "servers"


def run(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT)], env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=30
    )


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A PATH on which there is hardly anything, and no apt-get."""
    for name in ("bash", "env", "id", "paste"):
        path = shutil.which(name)
        assert path is not None
        (tmp_path / name).symlink_to(path)
    return str(tmp_path)


@pytest.mark.slow  # where something is missing, it installs it
def test_it_is_silent_where_all_is_there() -> None:
    require(*NEEDS)
    done = run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_warns_of_what_is_missing(bare: str) -> None:
    done = run(PATH=bare, DIBS_REQUIRE_SERVERS="")
    assert done.returncode == 0
    assert "no apt-get" in done.stderr
    assert {"redis-tools", "gcc", "openssl"} <= set(done.stderr.split())
    assert "skipped" in done.stderr


def test_it_fails_where_the_servers_are_required(bare: str) -> None:
    done = run(PATH=bare, DIBS_REQUIRE_SERVERS="1")
    assert done.returncode == 1
    assert {"redis-tools", "gcc", "openssl"} <= set(done.stderr.split())
    assert "skipped" not in done.stderr
