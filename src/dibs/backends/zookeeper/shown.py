"""What stands in a node, for others to see: the claim's own JSON text, with what the store has to say of it.

Others write what they like there (Curator the address of its host, or an id): it is shown as the owner, and means
nothing. `__REVOKE__` in a holder's node asks it to let go, as in Curator.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dibs.backends.zookeeper.wire.codec import Node
from dibs.info import Participant, printable, read_about

REVOKE = b"__REVOKE__"
_LONGEST = 200
_SOUND = 2**62
_YEARS = 4e12
"""Milliseconds; a time beyond it was not written by a clock."""


def written(about: str, timeout: float, ticket: int = 0, held: bool = False) -> bytes:
    """`ticket`: of the claim, where another node than this one gave it. `held`: it has just come to hold."""
    more = f'"session": {timeout:g}'
    if ticket:
        more += f', "ticket": {ticket}'
    if held:
        more += f', "held": {round(time.time() * 1000)}'
    return f"{about[:-1]}{', ' if len(about) > 2 else ''}{more}}}".encode()


def ticket_of(node: Node) -> int:
    """The token of the claim that a node belongs to."""
    said = _read(node.data).get("ticket")
    return said if isinstance(said, int) and said is not True and 0 < said < node.stat.czxid else node.stat.czxid


def participant(node: Node, weight: int, timeout: float) -> Participant:
    """`timeout`: of a session, where the node does not tell."""
    said = _read(node.data)
    held, lease = said.get("held"), said.get("session")
    since = held if isinstance(held, int) and node.stat.ctime <= held < _YEARS else node.stat.ctime
    return Participant(
        since=datetime.fromtimestamp(max(min(since, _YEARS), 0) / 1000, UTC),
        remaining=float(lease)
        if isinstance(lease, int | float) and 0 < lease < _SOUND and lease is not True
        else timeout,
        token=ticket_of(node),
        weight=weight,
        **_about(node.data, said),
    )


def _about(data: bytes, said: dict[str, Any]) -> dict[str, Any]:
    about = read_about(data.decode(errors="replace"))
    if not said and data and data != REVOKE:
        about["owner"] = printable(data[:_LONGEST].decode(errors="replace"))
    return about


def _read(data: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        said = json.loads(data)
        if isinstance(said, dict):
            return said
    return {}
