"""Arrays as the server takes them in binary form: nothing in them can be taken for anything but a value."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from dibs.backends.postgresql.routines import BYTES, NUMBER, TEXT


def texts(values: Sequence[str]) -> bytes:
    return _array(TEXT, [value.encode() for value in values])


def blobs(values: Sequence[bytes]) -> bytes:
    return _array(BYTES, values)


def numbers(values: Sequence[int]) -> bytes:
    return _array(NUMBER, [pack("!q", value) for value in values])


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    """One dimension, which begins at 1, of values none of which is NULL."""
    head = pack("!iiIii", 1, 0, kind, len(values), 1)
    return head + b"".join([pack("!i", len(value)) + value for value in values])
