"""What the programs share that run on a tiny file system of their own: asking for a lock, and filling the disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dibs

_ALONE = ["unshare", "--mount", "--propagation", "private"]


def run(program: Path, *words: str, place: Path) -> str:
    """What it prints, in a mount namespace of its own; it must not fail."""
    tests = Path(__file__).parents[1]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": f"{tests}:{tests.parent / 'src'}"}
    words = (*_ALONE, sys.executable, str(program), *words, str(place))
    done = subprocess.run(words, capture_output=True, text=True, timeout=170, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cannot_mount(place: Path) -> str:
    """Why there is no namespace of our own; empty if there is."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    words = [*_ALONE, "mount", "-t", "tmpfs", "tmpfs", str(place)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stderr.strip()


def tries(client: dibs.Client, name: str, **options: Any) -> dibs.Hold | dibs.StoreError | None:
    try:
        return client.lock(name, **options).acquire(timeout=0)
    except dibs.StoreError as error:
        return error


def fill(directory: Path) -> Path:
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler
