"""PostgreSQL, also with a streaming replica, and PgBouncer in front of it.

    with Server(PostgreSQL()) as server: server.ask("SELECT 1")
    with replicated() as (primary, replica): ...; promote(replica)
    with Server(PgBouncer(primary.port, mode="transaction")) as pool: ...

The superuser is `dibs` with the password `dibs` (SCRAM), the database `postgres`. fsync is on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from lab.servers import guard, ports, programs
from lab.servers.certificates import Certificates
from lab.servers.supervisor import Server, until

NAME = "dibs"
SETTINGS = (
    f"listen_addresses={ports.HOST}",
    "unix_socket_directories=",
    "shared_buffers=16MB",
    "dynamic_shared_memory_type=mmap",  # in the data directory, with which it ends
    "wal_level=replica",
)


class PostgreSQL:
    """`settings` as in postgresql.conf. `tls`: nobody is let in without. `replica_of`: whose copy it begins as."""

    name = "postgresql"

    def __init__(
        self,
        *settings: str,
        tls: Certificates | None = None,
        replica_of: int | None = None,
        port: int | None = None,
    ) -> None:
        self.port = port or ports.reserve()
        self.ports: tuple[int, ...] = (self.port,)
        self.user = programs.unprivileged()
        self._settings, self._tls, self._replica_of = settings, tls, replica_of

    def prepare(self, data: Path) -> None:
        if self._replica_of is not None:
            _copy_of_a_server(self._replica_of, data)
            return
        shutil.copytree(_template(), data, dirs_exist_ok=True)
        if self._tls is not None:
            shutil.copy(self._tls.server.certificate, data / "server.crt")
            (data / "server.key").touch(mode=0o600)
            (data / "server.key").write_bytes(self._tls.server.key.read_bytes())
            (data / "pg_hba.conf").write_text(f"hostssl all all {ports.HOST}/32 scram-sha-256\n")

    def command(self, data: Path) -> list[str]:
        settings = [*SETTINGS, f"port={self.port}", f"ssl={'on' if self._tls else 'off'}", *self._settings]
        given = [part for setting in settings for part in ("-c", setting)]
        return [programs.program("postgres"), "-D", str(data), *given]

    def ready(self) -> bool:
        return self.ask("SELECT 1", within=5) == "1"

    def url(self, **parts: str) -> str:
        return _url(self.port, parts)

    def ask(self, *words: str, within: float = programs.ANSWER) -> str:
        trust = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": str(self._tls.authority.certificate)} if self._tls else {}
        return psql(self.port, *words, within=within, **trust)


class PgBouncer:
    """Lets clients in as PostgreSQL would, and shares its connections to `upstream` by session or by transaction."""

    name = "pgbouncer"

    def __init__(self, upstream: int, *lines: str, mode: Literal["session", "transaction"] = "session") -> None:
        self.port = ports.reserve()
        self.ports: tuple[int, ...] = (self.port,)
        self.user = programs.unprivileged()
        self._lines = [
            "[databases]",
            f"* = host={ports.HOST} port={upstream}",
            "[pgbouncer]",
            f"listen_addr = {ports.HOST}",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = scram-sha-256",
            "auth_file = users.txt",
            f"admin_users = {NAME}",
            f"pool_mode = {mode}",
            *lines,
        ]

    def prepare(self, data: Path) -> None:
        (data / "pgbouncer.ini").write_text("\n".join([*self._lines, ""]))
        (data / "users.txt").write_text(f'"{NAME}" "{NAME}"\n')

    def command(self, data: Path) -> list[str]:
        return [programs.program("pgbouncer"), str(data / "pgbouncer.ini")]

    def ready(self) -> bool:
        """It serves, whatever the server behind it does."""
        return bool(self.ask("SHOW VERSION", database="pgbouncer", within=5))

    def url(self, **parts: str) -> str:
        return _url(self.port, parts)

    def ask(self, *words: str, within: float = programs.ANSWER, database: str = "postgres") -> str:
        return psql(self.port, *words, within=within, PGDATABASE=database)


@contextlib.contextmanager
def replicated(*settings: str, link: Callable[[int], int] = lambda port: port) -> Iterator[tuple[Server, Server]]:
    """A primary and a replica that streams from it. `link` gives for the primary's port the one to reach it by."""
    with (
        Server(PostgreSQL(*settings)) as primary,
        Server(PostgreSQL(*settings, replica_of=link(primary.port))) as replica,
    ):
        until(lambda: primary.ask("SELECT state FROM pg_stat_replication") == "streaming", what="the replica streams")
        yield primary, replica


def promote(replica: Server) -> None:
    assert replica.ask("SELECT pg_promote(wait => true)") == "t", replica.log()


def psql(port: int, *words: str, within: float = programs.ANSWER, **env: str) -> str:
    """Each of `words` is SQL; all go over one connection, one after the other."""
    login = {"PGUSER": NAME, "PGPASSWORD": NAME, "PGDATABASE": "postgres", "PGCONNECT_TIMEOUT": "10"}
    statements = [part for sql in words for part in ("-c", sql)]
    command = ["psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-h", ports.HOST, "-p", str(port), *statements]
    return programs.ask(command, within=within, env={**login, **env})


def _url(port: int, parts: dict[str, str]) -> str:
    user, password = parts.get("user", NAME), parts.get("password", NAME)
    return f"postgresql://{user}:{password}@{parts.get('host', ports.HOST)}:{port}/{parts.get('database', 'postgres')}"


def _copy_of_a_server(port: int, data: Path) -> None:
    source = ["-h", ports.HOST, "-p", str(port), "-U", NAME]
    command = ["pg_basebackup", *source, "-D", data, "-R", "-X", "stream", "--checkpoint=fast", "--no-sync"]
    programs.ask(command, cwd=data, user=programs.unprivileged(), env={"PGPASSWORD": NAME})


@guard.once
def _template() -> Path:
    path, password = guard.root() / "postgresql-template", guard.root() / "postgresql-password"
    path.mkdir(mode=0o700)
    password.write_text(NAME)
    user = programs.unprivileged()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)
    login = ["-U", NAME, "-A", "scram-sha-256", f"--pwfile={password}"]
    programs.ask(["initdb", "-D", path, *login, "-E", "UTF8", "--locale=C", "--no-sync"], cwd=path, user=user)
    return path
