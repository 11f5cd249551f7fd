"""The record of the last break of a lock (by whom, when, why), in a cell beside the lock.

The text is untrusted: anything that we did not write is no record, and is not overwritten. Recording is best effort (a
store may have no cells, or not reply), and follows the break: a holder that looks at once may not find it yet.
"""

from __future__ import annotations

import json
from contextlib import suppress

import dibs
from dibs.errors import BadName, Conflict, StoreError, Unsupported
from dibs.info import BREAK_MARK, Break, break_cell, read_break


class Foreign(Exception):
    """The cell contains something that is not a record."""


def record(client: dibs.Client, name: str, what: Break) -> None:
    """Replace the record of that name."""
    text = json.dumps({"record": BREAK_MARK, **what.shortened().to_json()}).encode()

    def replace(value: bytes | None) -> bytes:
        if value is not None and read_break(value) is None:
            raise Foreign
        return text

    with suppress(BadName, Unsupported, Conflict, StoreError, Foreign):
        client.cell(break_cell(name)).update(replace)


def last(client: dibs.Client, name: str) -> Break | None:
    """The last break of that name, if it is recorded; compare its token with that of your hold."""
    with suppress(BadName, Unsupported, StoreError):
        return read_break(client.cell(break_cell(name)).get()[0])
    return None
