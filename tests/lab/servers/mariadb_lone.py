"""The ways of one MariaDB: see lone.py."""

from __future__ import annotations

from contextlib import suppress

from lab.servers.programs import Refused
from lab.servers.supervisor import Server

_OURS = "SELECT id FROM information_schema.processlist WHERE user = 'dibs' AND id <> CONNECTION_ID() AND"
_WHICH = {"normal": "COALESCE(info, '') NOT LIKE '%GTID_WAIT(%'", "waiting": "info LIKE '%GTID_WAIT(%'"}


def end_connections(server: Server, kind: str) -> int:
    sessions = server.ask(f"{_OURS} {_WHICH[kind]}").split()
    with suppress(Refused):  # one has gone meanwhile: the others end all the same
        server.ask("--force", "; ".join(f"KILL CONNECTION {session}" for session in sessions))
    return len(sessions)


def left(server: Server) -> list[str]:
    """Claims. What has expired is swept by the next one who asks for the name."""
    return server.ask("SELECT CONCAT('claim ', name, ' ', ticket) FROM dibs_claims").splitlines()


def version(server: Server) -> str:
    return server.ask("SELECT VERSION()")
