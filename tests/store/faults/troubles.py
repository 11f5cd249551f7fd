"""Faults of the network for all connections of a client, until `proxy.heal()`. Each returns whether it struck."""

from __future__ import annotations

from collections.abc import Callable

from lab.faults import BlackHole, Cut, Match, Refuse, after_bytes
from lab.proxy import DOWN, UP, Proxy

Happened = Callable[[], bool]
Trouble = Callable[[Proxy], Happened]


def refused(proxy: Proxy) -> Happened:
    proxy.add(Refuse())
    proxy.reset()
    return lambda: not proxy.open_links


def reset(proxy: Proxy) -> Happened:
    before = len(proxy.links)
    proxy.reset()
    return lambda: len(proxy.links) > before


def black_hole(proxy: Proxy) -> Happened:
    """A client that connects anew may have to wait for a greeting before it says anything."""
    before = len(proxy.links)
    proxy.add(BlackHole())
    return lambda: proxy.total(UP, "dropped")[1] > 0 or len(proxy.links) > before


def half_open(proxy: Proxy) -> Happened:
    proxy.add(BlackHole(), DOWN)
    return lambda: proxy.total(DOWN, "dropped")[1] > 0


def request_torn(proxy: Proxy) -> Happened:
    """From byte 26 on nothing arrives; every later connection ends at its first byte."""
    proxy.add(Cut(after_bytes(25)), UP)
    return lambda: proxy.total(UP, "dropped")[1] > 0


def reply_torn(proxy: Proxy) -> Happened:
    """The request is executed, and nobody learns of it."""
    proxy.add(Cut(after_bytes(9)), DOWN)
    return lambda: proxy.total(DOWN, "dropped")[1] > 0


class amid:  # noqa: N801  # reads as a word: Cut(amid(match))
    """In the middle of the first message that fits."""

    def __init__(self, match: Match) -> None:
        self._match = match

    def meet(self, message: bytes) -> int | None:
        return len(message) // 2 if self._match(message) else None
