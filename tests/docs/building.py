"""The documentation site, built as `scripts/docs` builds it: once for all workers of a run."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_COMMAND = re.compile(r'^"\$python" -m sphinx (.*) -d .*$', re.MULTILINE)
_SPHINX = "import gc, sys; gc.disable(); from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
"""`python -m sphinx`. The garbage collector would take a quarter of the time, and what it frees is not needed."""


def built_site(temporary: pytest.TempPathFactory) -> Path:
    """Its directory. Any warning of Sphinx, and so any broken link, fails the test that asks for it."""
    base = temporary.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    place.mkdir(exist_ok=True)
    complaints = place / "complaints.txt"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complaints.exists():
            _build(place / "html", place / "doctrees", complaints)
    assert complaints.read_text() == ""
    return place / "html"


def _build(html: Path, doctrees: Path, complaints: Path) -> None:
    command = _COMMAND.search((ROOT / "scripts" / "docs").read_text(encoding="utf-8"))
    assert command
    assert "--fail-on-warning" in command[1]
    words = [sys.executable, "-c", _SPHINX, *command[1].split(), "-d", doctrees, ROOT / "docs", html]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    complaints.write_text(done.stderr if done.returncode == 0 else f"{done.stderr}\nstatus {done.returncode}")
