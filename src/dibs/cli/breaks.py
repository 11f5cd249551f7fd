"""The record of a broken lock: by whom, when and why, in the store, beside the lock.

The record of a name's last break is a cell whose name is made of the lock's. Its text is untrusted when it is read:
anything that we did not write is no record. Foreign values are not overwritten. Where a record cannot be kept (a store
without cells, a name too long, a store that does not reply) there is none: breaking does not depend on it.

It is written after the lock was broken, so a holder that is told at that moment may look too early.
"""

from __future__ import annotations

import json
from contextlib import suppress

import dibs
from dibs.errors import BadName, Conflict, StoreError, Unsupported
from dibs.info import BREAK_MARK, Break, break_cell, read_break


class Foreign(Exception):
    """Where the record should stand, somebody else keeps something."""


def record(client: dibs.Client, name: str, what: Break) -> None:
    """In place of the name's last one."""

    def replace(value: bytes | None) -> bytes:
        if value is not None and read_break(value) is None:
            raise Foreign
        return _write(what)

    with suppress(BadName, Unsupported, Conflict, StoreError, Foreign):
        client.cell(break_cell(name)).update(replace)


def last(client: dibs.Client, name: str) -> Break | None:
    """The name's last break, if one is on record; compare its token with that of the hold in question."""
    with suppress(BadName, Unsupported, StoreError):
        return read_break(client.cell(break_cell(name)).get()[0])
    return None


def _write(what: Break) -> bytes:
    """Bounded, whatever was given: six bytes a character at most, as JSON says what is not ASCII."""
    return json.dumps({"record": BREAK_MARK, **what.shortened().to_json()}).encode()
