"""The programs of the servers: find them, run them, read the output of a short-lived one.

`require("redis", "zookeeper", ...)` at the head of a fixture or test skips it where a program is missing, and fails it
if DIBS_REQUIRE_SERVERS=1. `scripts/servers` installs them all.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
NEEDS: dict[str, tuple[str, ...]] = {
    "redis": ("redis-server", "redis-sentinel", "redis-cli"),
    "zookeeper": ("java", str(ZOOKEEPER_JAR)),
    "curator": ("java", "javac", "mvn"),
    "redisson": ("java", "javac", "mvn"),
    "mariadb": ("mariadbd", "mariadb-install-db", "mariadb", "mariadb-admin"),
    "postgresql": ("postgres", "initdb", "pg_basebackup", "psql", "pg_isready"),
    "pgbouncer": ("pgbouncer",),
    "openssl": ("openssl",),
    "gcc": ("gcc", "/usr/include/stdio.h"),
}
ANSWER = 60.0


class Refused(Exception):
    """A program ended with an error; the text is what it said."""


class Silent(Exception):
    """A program got no answer in the time it had."""


@functools.cache
def find(program: str) -> str | None:
    """Its path. Debian keeps servers where no user's PATH looks; of several PostgreSQLs the newest."""
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    newest_first = sorted(versions, key=lambda path: float(path.parent.name), reverse=True)
    places = [*map(str, newest_first), os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
    return shutil.which(program, path=os.pathsep.join(places))


def program(name: str) -> str:
    path = find(name)
    assert path is not None, f"{name} is not installed: run scripts/servers"
    return path


def missing(*names: str) -> list[str]:
    return [part for name in names for part in NEEDS[name] if find(part) is None and not Path(part).is_file()]


def require(*names: str) -> None:
    if not (absent := missing(*names)):
        return
    unavailable(f"not installed: {', '.join(absent)}; scripts/servers installs them")


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it if DIBS_REQUIRE_SERVERS=1."""
    if os.environ.get("DIBS_REQUIRE_SERVERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def unprivileged() -> pwd.struct_passwd | None:
    """The user of a server that refuses root; None: this user."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def identity(user: pwd.struct_passwd | None) -> dict[str, Any]:
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}


def environment() -> dict[str, str]:
    """The environment without variables that choose another server, user or options."""
    foreign = ("PG", "MYSQL", "MARIADB", "REDISCLI_", "JAVA_", "JDK_JAVA_", "_JAVA_", "CLASSPATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def ask(
    command: Sequence[object],
    *,
    within: float = ANSWER,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: pwd.struct_passwd | None = None,
) -> str:
    """The output of a short-lived program. Raises Refused with its output, Silent if it took too long."""
    try:
        answer: subprocess.CompletedProcess[str] = subprocess.run(
            [program(str(command[0])), *map(str, command[1:])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
            env={**environment(), **(env or {})},
            cwd=cwd,
            **identity(user),
        )
    except subprocess.TimeoutExpired:
        raise Silent(f"{command[0]}: no answer within {within:g} s") from None
    if answer.returncode:
        raise Refused(f"{command[0]}: {answer.stderr.strip()} {answer.stdout.strip()}")
    return answer.stdout.strip()
