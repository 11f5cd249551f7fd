"""A release beside the keeper's turn."""

from __future__ import annotations

import dibs
from dibs.core.grant import Grant
from dibs.runtime.threads import step


def test_a_renewal_that_is_due_in_the_middle_of_a_release_does_not_make_it_a_loss() -> None:
    """The hold is over already and its grant not yet taken out of renewal: the keeper finds nobody who wants it."""
    with dibs.connect("memory://release-race") as client:
        hold = client.lock("job").acquire()
        assert hold is not None
        book, unshare = client._core.book, client._core.book._unshare

        def due_just_then(grant: Grant) -> None:
            grant.renew_at = 0.0
            step(client._core.keeper.turn())
            unshare(grant)

        book._unshare = due_just_then  # type: ignore[method-assign]
        hold.release()
        assert not client.lock("job").locked()
