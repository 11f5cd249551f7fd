"""Redisson's jars, and the Java program of java/redisson compiled against them.

`class_path(version)` lets Maven fetch and compile them once. Maven keeps the jars in its own cache. The classes and the
text of the class path are in the lab's cache, so later calls need no Maven. A test is skipped where Maven or Java is
missing or no repository can be reached, and fails instead if DIBS_REQUIRE_SERVERS=1.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from lab.java_cache import Program, alone
from lab.servers import programs

PROJECT = Path(__file__).parent / "java" / "redisson"
NEWEST = "4.7.0"
VERSIONS = ("3.27.2", "3.52.0", NEWEST)
"""Those that the tests know: before sharded modes and the batched watchdog, the last of 3, and the newest."""
FETCHING = 300.0
"""How long Maven may take. The first time it also fetches its own plugins."""


@functools.cache
def class_path(version: str = NEWEST) -> Program:
    programs.require("redisson")
    with alone("redisson") as cache:
        place = cache / f"redisson-{version}-{_key(version)}"
        if not _whole(place):
            shutil.rmtree(place, ignore_errors=True)
            _build(cache, place, version)
        return Program(version, os.pathsep.join([str(place / "classes"), *_jars(place)]))


def _key(version: str) -> str:
    """Of exactly this source, built for this version."""
    found = hashlib.sha256(version.encode())
    for path in sorted(PROJECT.iterdir()):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _jars(place: Path) -> list[str]:
    return (place / "class-path").read_text().strip().split(os.pathsep)


def _whole(place: Path) -> bool:
    """Maven's cache may have been emptied since."""
    return place.exists() and all(map(os.path.exists, _jars(place)))


def _build(cache: Path, place: Path, version: str) -> None:
    with tempfile.TemporaryDirectory(dir=cache) as unfinished:
        try:
            programs.ask(
                ["mvn", "-q", "-B", f"-Dredisson.version={version}", f"-Dplace={unfinished}/redisson", "compile",
                 "dependency:build-classpath", f"-Dmdep.outputFile={unfinished}/redisson/class-path"],
                within=FETCHING, cwd=PROJECT,
            )  # fmt: skip
        except programs.Refused as refused:
            if "Could not transfer" in str(refused):
                programs.unavailable(f"Maven reaches no repository: {refused}")
            raise
        Path(unfinished, "redisson").rename(place)


if __name__ == "__main__":  # scripts/test begins with it, because Maven may take minutes the first time
    for each in VERSIONS:
        class_path(each)
