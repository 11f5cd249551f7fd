"""Where there is no Unix: memory works, and every network store can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_what_windows_lacks_is_not_needed() -> None:
    script = Path(__file__).with_name("elsewhere.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.split() == ["works"], run.stderr
