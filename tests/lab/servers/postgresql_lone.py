"""The ways of one PostgreSQL: see lone.py."""

from __future__ import annotations

from lab.servers.supervisor import Server

_OURS = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
_WHICH = {"normal": "query NOT ILIKE 'LISTEN%'", "waiting": "query ILIKE 'LISTEN%'"}


def end_connections(server: Server, kind: str) -> int:
    ended = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {_OURS} AND {_WHICH[kind]}"
    return int(server.ask(ended))


def left(server: Server) -> list[str]:
    """Claims. What has expired is swept by the next one who asks for the name."""
    return server.ask("SELECT 'claim ' || name || ' ' || ticket FROM dibs.dibs_claims").splitlines()


def version(server: Server) -> str:
    return server.ask("SHOW server_version")
