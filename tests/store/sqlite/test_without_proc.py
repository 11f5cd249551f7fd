"""A process that cannot see which boot this is must not take the locks of those who can for old ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dibs
from store.sqlite.places import url_of

WITHOUT_PROC = [
    "unshare", "--mount", "--propagation", "private",
    "sh", "-ec", 'mount --bind "$0" /mnt; mount -t tmpfs tmpfs /proc; exec "$@"',
]  # fmt: skip
"""Without /proc only a short path will do for sockets."""
TRY = """
import dibs
try:
    hold = dibs.connect("sqlite:////mnt/locks.db").lock("a").acquire(timeout=0)
except dibs.StoreError:
    hold = None
print("took it" if hold else "did not")
"""


def test_a_process_without_proc_beside_one_with_it(path: Path) -> None:
    inside = [*WITHOUT_PROC, str(path.parent)]
    tried = subprocess.run([*inside, "true"], capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace of one's own here: {tried.stderr.strip()}")
    with dibs.connect(url_of(path)) as client, client.lock("a", timeout=5) as hold:
        done = subprocess.run(
            [*inside, sys.executable, "-c", TRY], capture_output=True, text=True, timeout=40, check=True
        )
        hold.check()
        assert done.stdout == "did not\n"
