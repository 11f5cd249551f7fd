"""MariaDB: `with Server(MariaDB()) as server: server.ask("SELECT 1")`.

The user `dibs` with the password `dibs` has all rights, also on a database `dibs`. Every commit is written through.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab.servers import guard, ports, programs
from lab.servers.certificates import Certificates

NAME = "dibs"
SMALL = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M", "--performance-schema=off")
FIRST = f"""
DELETE FROM mysql.global_priv WHERE User = '';
FLUSH PRIVILEGES;
CREATE DATABASE {NAME};
CREATE USER {NAME}@'%' IDENTIFIED BY '{NAME}';
GRANT ALL PRIVILEGES ON *.* TO {NAME}@'%' WITH GRANT OPTION;
"""


class MariaDB:
    """`options` are mariadbd's, as on its command line. `tls`: offered; with `insist` nobody is let in without."""

    name = "mariadb"

    def __init__(
        self, *options: str, tls: Certificates | None = None, insist: bool = False, port: int | None = None
    ) -> None:
        self.port = port or ports.reserve()
        self.ports: tuple[int, ...] = (self.port,)
        self.user = programs.unprivileged()
        self._options, self._tls, self._insist = options, tls, insist

    def prepare(self, data: Path) -> None:
        shutil.copytree(_template(), data, dirs_exist_ok=True)
        if self._tls is not None:
            shutil.copy(self._tls.server.together, data / "server.pem")
            shutil.copy(self._tls.authority.certificate, data / "authority.crt")

    def command(self, data: Path) -> list[str]:
        place = [f"--datadir={data}", f"--socket={data}/socket", f"--pid-file={data}/pid", f"--tmpdir={data}"]
        address = [f"--bind-address={ports.HOST}", f"--port={self.port}", "--skip-name-resolve", "--skip-log-bin"]
        mariadbd = [programs.program("mariadbd"), "--no-defaults", *place, *address, *SMALL]
        return [*mariadbd, *self._tls_options(data), *self._options]

    def _tls_options(self, data: Path) -> list[str]:
        if self._tls is None:
            return []
        pair = [f"--ssl-cert={data}/server.pem", f"--ssl-key={data}/server.pem", f"--ssl-ca={data}/authority.crt"]
        return [*pair, f"--require-secure-transport={'on' if self._insist else 'off'}"]

    def ready(self) -> bool:
        return self.ask("SELECT 1", within=5) == "1"

    def url(self, **parts: str) -> str:
        user, password = parts.get("user", NAME), parts.get("password", NAME)
        return f"mysql://{user}:{password}@{parts.get('host', ports.HOST)}:{self.port}/{parts.get('database', NAME)}"

    def ask(self, *words: str, within: float = programs.ANSWER) -> str:
        trust = [f"--ssl-ca={self._tls.authority.certificate}"] if self._tls else []
        return self.cli(*trust, *words, within=within)

    def cli(self, *words: str, within: float = programs.ANSWER) -> str:
        """The last of `words` is SQL, the others are options of the program mariadb, TLS among them."""
        *options, sql = words
        address = ["--protocol=tcp", f"--host={ports.HOST}", f"--port={self.port}", f"--user={NAME}"]
        plain = ["--batch", "--skip-column-names", f"--database={NAME}"]
        command = ["mariadb", "--no-defaults", *address, *plain, *options, "--execute", sql]
        return programs.ask(command, within=within, env={"MYSQL_PWD": NAME})


@guard.once
def _template() -> Path:
    path, first = guard.root() / "mariadb-template", guard.root() / "mariadb-first.sql"
    path.mkdir(mode=0o700)
    user = programs.unprivileged()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)
    first.write_text(FIRST)
    # A server that starts removes all temporary tables that it finds: not those of another one that is being made.
    options = [f"--datadir={path}", f"--tmpdir={path}"]
    options += ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    programs.ask(
        ["mariadb-install-db", "--no-defaults", *options, *SMALL, f"--extra-file={first}"], cwd=path, user=user
    )
    return path
