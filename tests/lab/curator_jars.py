"""Curator's jars, and the Java program of this folder compiled against them.

`compiled()` gives a class path and says which Curator is on it. That is 5.9.0 where a Maven repository can be reached,
else Debian's 5.4, which knows no tie nodes (a write holder that reads stands at its own number only since 5.5). All
else, such as logging, is Debian's.

Which repository: `DIBS_MAVEN` (empty: none), else what Maven's settings put in Central's place, else where the
installed Maven finds Central. What comes from there counts only if its digest is the one written here; anything else
is thrown away, and Debian's do.

Jars and classes are kept in the user's cache, each made once whoever comes first: one process at a time, and nothing
is there before it is whole.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import os
import re
import shutil
import tempfile
import urllib.request
import zipfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from lab.java_cache import Program, alone
from lab.servers import programs

SOURCE = Path(__file__).parent / "java" / "Curator.java"
DEBIAN = programs.ZOOKEEPER_JAR.parent
COMMON = ("slf4j-api", "slf4j-simple", "netty-handler", "netty-common", "netty-transport", "netty-buffer")
"""Debian's, beside either Curator: a log on stderr, and what ZooKeeper's client loads without using it."""
JAVAC = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-Xlint:all,-classfile,-path", "-Werror", "-proc:none")
NEWEST = "5.9.0"
DIGESTS = {
    "org/apache/curator/curator-recipes/5.9.0": "2b384c256a8a30dfdff11763ec0fd56b6346e001afcb0c5ea972d5d0db1698bc",
    "org/apache/curator/curator-framework/5.9.0": "f8588d71d4b2d0b15ef5f911ceaac387563070cc328b91025047131d0c05733e",
    "org/apache/curator/curator-client/5.9.0": "9b1d65fa1940f77199ed097a8e586534efd1e9311227939a46a0e467a5f7991a",
    "org/apache/zookeeper/zookeeper/3.9.3": "ad6570105768d18382a762325b4460368b7089a5a77c053e682b17942e0e72b5",
    "org/apache/zookeeper/zookeeper-jute/3.9.3": "be72e2c9099413a9878ce830b65bb22e0be755dc2a22b290550ab9e03b5b4cfa",
}
"""SHA-256, by place in a Maven repository."""
REACHED = 10.0
"""How long a repository may be silent."""


class Jars(NamedTuple):
    version: str
    paths: tuple[Path, ...]


@functools.cache
def compiled() -> Program:
    with alone("curator") as cache:
        jars = _from_maven(cache) or _from_debian()
        class_path = [*map(str, jars.paths), *(str(DEBIAN / f"{jar}.jar") for jar in COMMON)]
        return Program(jars.version, os.pathsep.join([str(_classes(cache, class_path)), *class_path]))


def _classes(cache: Path, class_path: list[str]) -> Path:
    """Of exactly this source and these jars."""
    key = hashlib.sha256(SOURCE.read_bytes())
    for jar in class_path:
        key.update(f"{jar} {Path(jar).stat().st_size} {Path(jar).stat().st_mtime_ns}\n".encode())
    classes = cache / f"classes-{key.hexdigest()[:16]}"
    if not classes.exists():
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            programs.ask(
                ["javac", *JAVAC, "-cp", os.pathsep.join(class_path), "-d", f"{unfinished}/classes", SOURCE],
                within=120,
            )
            Path(unfinished, "classes").rename(classes)
    return classes


def _from_debian() -> Jars:
    """Its manifests name the other jars."""
    jar = DEBIAN / "curator-recipes.jar"
    versions = [path.name for path in DEBIAN.glob("curator-recipes-*.jar")]
    return Jars(versions[0].removeprefix("curator-recipes-").removesuffix(".jar"), (jar,))


def _from_maven(cache: Path) -> Jars | None:
    """None: they cannot be had."""
    repository = os.environ.get("DIBS_MAVEN", _central())
    if not repository:
        return None
    paths = [_jar(cache, repository, place) for place in DIGESTS]
    if None in paths:
        return None
    return Jars(NEWEST, tuple(path for path in paths if path is not None))


def _jar(cache: Path, repository: str, place: str) -> Path | None:
    artifact, version = place.split("/")[-2:]
    name = f"{artifact}-{version}.jar"
    path = cache / name
    if path.exists():
        return path
    try:
        with urllib.request.urlopen(f"{repository.rstrip('/')}/{place}/{name}", timeout=REACHED) as answer:
            jar = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    if hashlib.sha256(jar).hexdigest() != DIGESTS[place]:
        return None
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(jar)
    return unfinished.rename(path)


def _central() -> str | None:
    """Where Maven, as it is set up here, finds Central."""
    maven = shutil.which("mvn")
    if maven is None:
        return None
    home = Path(maven).resolve().parents[1]
    for settings in (Path.home() / ".m2" / "settings.xml", home / "conf" / "settings.xml"):
        if settings.exists() and (mirror := _mirror(settings)):
            return mirror
    for jar in (home / "lib").glob("maven-model-builder-*.jar"):
        with zipfile.ZipFile(jar) as archive:
            model = archive.read("org/apache/maven/model/pom-4.0.0.xml").decode()
        if found := re.search(r"<id>central</id>.*?<url>([^<]+)</url>", model, re.DOTALL):
            return found[1]
    return None


def _mirror(settings: Path) -> str | None:
    """What stands in for Central there."""
    for mirror in ET.parse(settings).iterfind(".//{*}mirror"):
        if {"*", "central"} & set(mirror.findtext("{*}mirrorOf", "").split(",")):
            return mirror.findtext("{*}url")
    return None
