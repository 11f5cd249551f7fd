"""Twenty processes whose ways cross on a few names: what servers say of deadlocks and conflicts reaches nobody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.servers import shared_mariadb, shared_postgresql
from store.crossing import LEAST

MANY = 20
PROGRAM = Path(__file__).with_name("crossing.py")
STORES: dict[str, Callable[[Path], str]] = {"postgresql": shared_postgresql.fresh, "mysql": shared_mariadb.fresh}


@pytest.mark.soak  # twenty processes keep every core busy, which others need
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [5, 60])
@pytest.mark.parametrize("store", STORES)
def test_no_deadlock_reaches_the_user(store: str, seconds: int, tmp_path: Path) -> None:
    url = STORES[store](tmp_path)
    crowd = [
        subprocess.Popen(
            [sys.executable, PROGRAM, url, str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(MANY)
    ]
    try:
        said = [one.communicate(timeout=seconds + 110) for one in crowd]
    finally:
        for one in crowd:
            one.kill()
            one.wait()
    assert [one.returncode for one in crowd] == [0] * MANY, "\n".join(error for _, error in said)
    counts = [int(out) for out, _ in said]
    print(f"figure: {store}: {sum(counts)} times in {seconds} s, of which each process had {min(counts)} or more")
    assert min(counts) >= LEAST
