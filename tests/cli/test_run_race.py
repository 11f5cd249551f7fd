"""Wrappers that race: their commands never overlap, and nobody is stuck; also when some of them are killed.

The resource notices a second user by itself: a file that must not be there (noclobber is O_EXCL), so many slots, or a
lock of the kernel.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.commands import Cli
from process.children import PATIENCE, clock, until

ALONE = 'set -C; : > "$0" || exit 9; exec rm "$0"'
"""Ends with 9 where somebody is there already."""


@pytest.mark.parametrize("rounds", [30, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_two_never_overlap(cli: Cli, rounds: int) -> None:
    """An overlap ends with 9, a wrapper that is stuck with the test's timeout."""
    busy = cli.directory / "busy"
    crowd = (sys.executable, str(Path(__file__).with_name("crowd.py")), str(rounds), "2")
    done = subprocess.run(
        [*crowd, "x", "--", "sh", "-c", ALONE, str(busy)],
        env=cli.environment(), cwd=cli.directory, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert cli.client().inspect("x").holders == ()


SLOTS = """
import os, sys, time
folder, most = sys.argv[1], int(sys.argv[2])
for slot in range(most + 1):
    try:
        os.mkdir(f"{folder}/{slot}")
        break
    except FileExistsError:
        continue
if slot == most:
    sys.exit(9)
with open(f"{folder}.log", "a") as log:
    log.write(f"{len(os.listdir(folder))}\\n")
time.sleep(0.2)
os.rmdir(f"{folder}/{slot}")
"""
"""Takes one of so many slots, or ends with 9; notes how many are taken."""


def test_ten_at_once_with_five_permits(cli: Cli) -> None:
    slots = cli.directory / "slots"
    slots.mkdir()
    command = (sys.executable, "-S", "-c", SLOTS, str(slots), "5")
    crowd = [cli.start("run", "x", "--of", "5", "--", *command) for _ in range(10)]
    assert [one.end() for one in crowd] == [0] * 10, [one.errors for one in crowd]
    seen = [int(line) for line in slots.with_suffix(".log").read_text().split()]
    assert len(seen) == 10
    assert max(seen) <= 5
    assert list(slots.iterdir()) == []


def test_a_crowd_in_which_some_are_killed(cli: Cli) -> None:
    """The kernel's lock on a file ends with the command that has it: whoever finds it taken ends with 9."""
    chance = random.Random(5)
    command = ("flock", "--nonblock", "--no-fork", "-E", "9", str(cli.directory / "busy"), "sleep", "0.3")
    crowd = {one.process.pid: one for one in (cli.start("run", "x", "--", *command) for _ in range(9))}
    client = cli.client()
    killed: set[int] = set()
    seen: set[int] = set()
    end = clock() + 2 * PATIENCE
    while alive := [pid for pid, one in crowd.items() if one.process.poll() is None]:
        assert clock() < end, f"stuck: {client.inspect('x')}"
        time.sleep(0.01)
        holders = client.inspect("x").holders
        if holders and holders[0].token not in seen:
            seen.add(holders[0].token)
            if len(killed) < 4 and len(seen) % 2:
                killed.add(pid := chance.choice([holders[0].pid, *alive]))
                crowd[pid].process.kill()
    statuses = {pid: one.end() for pid, one in crowd.items() if pid not in killed}
    assert len(killed) > 1
    assert set(statuses.values()) == {0}, statuses
    until(lambda: not client.inspect("x").holders and not client.inspect("x").waiters, what="an empty line")
