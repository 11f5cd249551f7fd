"""Run the lab's tests of itself, and note in `CHECKED` that all of them passed: scripts/soak lab.

`CHECKED` is a digest of all files of the lab. tests/architecture compares it. Commit it with a change of the lab.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CHECKED = HERE / "CHECKED"


def digest() -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in HERE.rglob("*") if path.is_file()):
        if path != CHECKED and "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{path.relative_to(HERE).as_posix()} {content}\n".encode())
    return found.hexdigest()


def main() -> int:
    before = digest()
    tests = sorted(map(str, HERE.glob("test_*.py")))
    options = ["-q", "-n", "4", "--dist", "loadgroup", "--timeout", "300", "-m", "soak or not soak"]
    env = {**os.environ, "DIBS_REQUIRE_SERVERS": "1"}  # what was skipped was not checked
    status = subprocess.run([sys.executable, "-m", "pytest", *options, *tests], env=env, check=False).returncode
    if digest() != before:
        sys.exit("the lab was changed during its tests: run them again")
    if status == 0:
        CHECKED.write_text(f"{before}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
