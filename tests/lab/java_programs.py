"""The Java programs below java/, compiled against the libraries that they drive.

Maven fetches a library and compiles the program once for each version. Maven keeps the jars in its own cache; the
classes and the text of the class path are in the user's cache, so later calls need no Maven. A test is skipped where no
repository can be reached, and fails instead if DIBS_REQUIRE_SERVERS=1.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from lab.servers import programs

JAVA = Path(__file__).parent / "java"
CURATOR = "5.9.0"
REDISSON = "4.7.0"
REDISSONS = ("3.27.2", "3.52.0", REDISSON)
"""Before sharded modes and the batched watchdog, the last of 3, and the newest."""
FETCHING = 300.0
"""Seconds that Maven may take. The first time it also fetches its own plugins."""


@functools.cache
def class_path(library: str, version: str) -> str:
    programs.require(library)
    project = JAVA / library
    key = hashlib.sha256(version.encode())
    for path in sorted(project.iterdir()):
        key.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dibs-lab"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / f"{library}-{version}-{key.hexdigest()[:16]}"
    with (cache / f"{library}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process builds, the others wait
        if not place.exists() or not all(map(os.path.exists, _jars(place))):  # Maven's cache may have been emptied
            shutil.rmtree(place, ignore_errors=True)
            _build(project, version, place)
        return os.pathsep.join([str(place / "classes"), *_jars(place)])


def _jars(place: Path) -> list[str]:
    return (place / "class-path").read_text().strip().split(os.pathsep)


def _build(project: Path, version: str, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent) as unfinished:
        target = Path(unfinished, "target")
        try:
            programs.ask(
                ["mvn", "-q", "-B", f"-Dlibrary.version={version}", f"-Dplace={target}", "compile",
                 "dependency:build-classpath", f"-Dmdep.outputFile={target}/class-path"],
                within=FETCHING, cwd=project,
            )  # fmt: skip
        except programs.Refused as refused:
            if "Could not transfer" in str(refused):
                programs.unavailable(f"Maven reaches no repository: {refused}")
            raise
        target.rename(place)


if __name__ == "__main__":  # scripts/test begins with it, because Maven may take minutes the first time
    class_path("curator", CURATOR)
    for each in REDISSONS:
        class_path("redisson", each)
