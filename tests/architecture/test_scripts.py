"""scripts/setup and scripts/servers where there is nothing to do, and where nothing can be done; what scripts/test and
scripts/soak rely on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.checked import CHECKED, digest
from lab.servers.programs import NEEDS, require

ROOT = Path(__file__).parents[2]


def run(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / script], env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60
    )


def test_setup_makes_the_plain_install_without_an_argument(tmp_path: Path) -> None:
    """It is made already: that of `dev` and of `docs` is not."""
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with (ROOT / "pyproject.toml").open("rb") as file:
        told = subprocess.run(["cksum"], stdin=file, capture_output=True, text=True, timeout=60, check=True).stdout
    (tmp_path / f".dibs-run-{told.split()[0]}").touch()
    before = {one.name for one in tmp_path.iterdir()}
    done = run("setup", DIBS_VENV=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{python}\n", "")
    assert {one.name for one in tmp_path.iterdir()} == before


@pytest.mark.slow  # where something is missing, it installs it
def test_servers_is_silent_where_all_is_there() -> None:
    require(*NEEDS)
    done = run("servers")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("required", ["", "1"])
def test_servers_says_what_is_missing(tmp_path: Path, required: str) -> None:
    """The PATH has hardly anything, and no apt-get: a warning, and a failure where the servers are required."""
    for name in ("bash", "env", "id", "paste"):
        path = shutil.which(name)
        assert path is not None
        (tmp_path / name).symlink_to(path)
    done = run("servers", PATH=str(tmp_path), DIBS_REQUIRE_SERVERS=required)
    assert done.returncode == bool(required)
    assert {"redis-tools", "gcc", "openssl"} <= set(done.stderr.split())
    assert ("skipped" in done.stderr) == (not required)
    assert required or "no apt-get" in done.stderr


@pytest.mark.xdist_group("together")
def test_a_group_goes_to_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist marks a group in its tests' names. With a pytest that it does not know yet it does not, and says
    nothing: servers are then started for each test, and what must run alone runs side by side."""
    grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@together") == grouped


def test_the_lab_was_checked_since_it_changed() -> None:
    checked = CHECKED.read_text().strip() if CHECKED.exists() else ""
    assert checked == digest(), "tests/lab changed since its own tests last ran: run scripts/soak lab"
