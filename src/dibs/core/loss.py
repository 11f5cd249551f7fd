"""Why a hold was lost: the reason as one word, and as a sentence.

A grant is lost for one reason (`Grant.loss`): the first that is noticed. A hold of it may end earlier, at its
`max_hold`.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.errors import LossReason, StoreError

INSTANT = "%Y-%m-%d %H:%M:%S UTC"


class Loss(NamedTuple):
    reason: LossReason
    text: str


class Trouble(NamedTuple):
    """Renewals fail."""

    since: float
    """When the first failed renewal was sent."""
    seen_at: float
    """When the first renewal failed."""
    error: StoreError
    """The latest error."""


EXPIRED = Loss("expired", "its lease ran out, and it was taken with renew=False")
CLOSED = Loss("closed", "the client was closed")
EXITED = Loss("closed", "the process ends")
FORKED = Loss("closed", "a process made by fork() holds none of its parent's locks")
GIVEN_BACK = Loss("closed", "it was released")
BROKEN = Loss(
    "broken", "the store no longer has it: somebody broke it, or it was lost with a session or in a fail-over"
)
DISPLACED = Loss("broken", "the store granted it to another client; it lost this hold, perhaps in a fail-over")
REPLACED = Loss("broken", "the store lost it: it was restored, emptied, or replaced in a fail-over")


def too_old(max_hold: float) -> Loss:
    return Loss("max_hold", f"it was held longer than max_hold={max_hold:g}")
