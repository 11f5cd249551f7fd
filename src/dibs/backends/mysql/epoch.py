"""Which store a client talks to: tables that were dropped and made anew are another one, with none of our claims in it.

Every verb's answer names the store (the id in dibs_store). All ways of a client to its store share what is known.
"""

from __future__ import annotations

from dibs.core.line import Replaced


class Epoch:
    """
    >>> epoch = Epoch()
    >>> epoch.check(b"one"), epoch.check(None), epoch.check(b"one")
    (None, None, None)
    >>> epoch.check(b"two")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dibs.core.line.Replaced: the tables were created anew: all locks are lost. Next: ...
    >>> epoch.check(b"two")
    """

    def __init__(self) -> None:
        self._known: bytes | None = None

    def check(self, seen: bytes | None) -> None:
        """Raise if it is not the one of the answer before, once; from then on it is the new one. None: that row is
        missing, which says nothing."""
        known = self._known
        if seen is None or seen == known:
            return
        self._known = seen
        if known is not None:
            raise Replaced(
                "the tables were created anew: all locks are lost", step="find the program that did that, and stop it"
            )
