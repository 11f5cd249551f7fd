"""`dibs run` on a session: between two beats less than a quarter of the lease is left of a hold, which is no loss."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper()) as server:
        yield server


@pytest.mark.parametrize("lease", ["6", "30"], ids=["granted", "more than the servers grant"])
def test_a_command_outlasts_the_time_out_of_a_sound_session(server: Server, lease: str) -> None:
    options = ["--url", server.url(), "--lease", lease]
    done = subprocess.run(
        [sys.executable, "-m", "dibs.cli.main", "run", *options, f"long-{lease}", "--", "sleep", "7"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
