"""The ways of one Redis: see lone.py."""

from __future__ import annotations

import re

from lab.servers.supervisor import Server

STAYS = {"top", "keeps", "outside"}
"""Of a line in which nobody stands: bounded, and gone by itself some days later."""
_TYPES = {"normal": "normal", "waiting": "pubsub"}


def end_connections(server: Server, kind: str) -> int:
    return int(server.ask("CLIENT", "KILL", "TYPE", _TYPES[kind]))


def fields(server: Server, key: str) -> set[str]:
    """As redis-cli quotes them: ids are no text."""
    return set(re.findall(r'^\s*\d+\) "(.*)"$', server.ask("--no-raw", "HKEYS", key), re.MULTILINE))


def lines(server: Server) -> list[str]:
    """The keys of all lines."""
    return [key for key in server.ask("--scan", "--pattern", "*|line").splitlines() if key]


def left(server: Server) -> list[str]:
    """Fields of lines beyond those that stay. What has expired is swept by the next one who asks for the name."""
    return [f"{key}: {field}" for key in lines(server) for field in fields(server, key) - STAYS]


def version(server: Server) -> str:
    found = re.search(r"redis_version:([\d.]+)", server.ask("INFO", "server"))
    return found[1] if found else "unknown"
