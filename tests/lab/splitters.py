"""Find the end of a message: one function for each protocol, for the fault proxy.

A splitter gets the bytes since the last message, and the number of messages before it in that direction; it returns the
length of the first message, or 0 if that is not whole yet. Not for TLS.
"""

from __future__ import annotations

from collections.abc import Callable

Splitter = Callable[[bytes, int], int]

_RESP_STRINGS = b"$=!"
_RESP_MEMBERS = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ord("|"): 2}
"""How many values stand for each counted member: a map has keys, too."""
_ATTRIBUTE = ord("|")


def lines(text: bytes, number: int) -> int:
    return text.find(b"\n") + 1


def resp(text: bytes, number: int) -> int:
    """Redis, versions 2 and 3 of its protocol, requests and replies; an inline command is a line."""
    return max(_resp_end(text, 0), 0)


def _resp_end(text: bytes, start: int) -> int:
    """Where the value that begins at `start` ends; -1: not here yet."""
    end = text.find(b"\r\n", start) + 2
    if end == 1:
        return -1
    kind = text[start]
    if kind in _RESP_STRINGS:
        length = int(text[start + 1 : end])
        end += length + 2 if length >= 0 else 0
        return end if end <= len(text) else -1
    if kind in _RESP_MEMBERS:
        # What an attribute tells about comes behind it, and belongs to it.
        count = max(int(text[start + 1 : end]), 0) * _RESP_MEMBERS[kind] + (kind == _ATTRIBUTE)
        for _ in range(count):
            end = _resp_end(text, end)
            if end < 0:
                return -1
    return end


def zookeeper(text: bytes, number: int) -> int:
    """Four bytes of length, big end first; four-letter words are not for this."""
    return _whole(text, 4 + int.from_bytes(text[:4], "big")) if len(text) >= 4 else 0


def mysql(text: bytes, number: int) -> int:
    """Packets: three bytes of length, little end first, and a sequence number."""
    return _whole(text, 4 + int.from_bytes(text[:3], "little")) if len(text) >= 4 else 0


def postgresql(text: bytes, number: int) -> int:
    """A letter and a length that counts itself; the first request has no letter, and the answer to the question for
    TLS is a letter alone: no other first answer begins with these two."""
    if number == 0 and text[:1] in (b"S", b"N"):
        return 1
    letter = 0 if text[:1] == b"\0" else 1
    if len(text) < letter + 4:
        return 0
    return _whole(text, letter + int.from_bytes(text[letter : letter + 4], "big"))


def _whole(text: bytes, length: int) -> int:
    return length if len(text) >= length else 0
