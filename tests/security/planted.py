"""Beside something hostile that somebody planted on the name "a": whatever a user may do there is refused well, or does
nothing, and all goes on elsewhere.
"""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

from collections.abc import Callable

import dibs
from dibs.url import parse


def attempts(client: dibs.Client) -> list[Callable[[], object]]:
    """Whatever a user may do with a name."""

    def enter() -> None:
        with client.lock("a", timeout=0.05):
            raise AssertionError("granted")

    return [
        lambda: client.lock("a").acquire(timeout=0),
        enter,
        lambda: client.lock("a", fair=False).acquire(timeout=0.05),
        lambda: client.inspect("a"),
        lambda: list(client.locks()),
        lambda: client.lock("a").locked(),
        lambda: client.lock("a").revoke(),
        lambda: client.break_("a", token=1),
    ]


def is_said_well(error: dibs.DibsError, url: str) -> bool:
    """It names the lock or the store, steers no terminal, and does not drown anybody."""
    text = str(error)
    return ('"a"' in text or parse(url).shown in text) and text.isprintable() and len(text) < 20_000


def nothing_comes_of_it(client: dibs.Client, url: str) -> list[str]:
    """What was said."""
    said = []
    for attempt in attempts(client):
        try:
            assert not isinstance(attempt(), dibs.Hold), "granted beside a holder"
        except dibs.DibsError as error:
            assert is_said_well(error, url), str(error)[:300]
            said.append(str(error))
    return said


def others_are_served(client: dibs.Client, other: dibs.Client) -> None:
    with client.lock("b", timeout=5) as hold:
        assert other.lock("b").acquire(timeout=0) is None
        hold.check()
    with other.lock("b", timeout=5):
        """Handed over."""
