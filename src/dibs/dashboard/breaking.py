"""`POST api/break`: take a lock away from the holder with that token, as `dibs break` does, with the same records."""

from __future__ import annotations

import dibs
from dibs._shared import login, place
from dibs.dashboard.guard import Problem
from dibs.dashboard.views import StoreViews
from dibs.errors import BadName, DibsError, NotHeld, StoreUnavailable
from dibs.info import LONGEST_REASON, clip
from dibs.monitor import break_log

MOST_BODY = 16_384


def break_lock(store: StoreViews, name: str, token: object, reason: object, client: object) -> str:
    """The sentence for the audit. Runs in a thread. Raises Problem: nothing was broken, or that is not known."""
    if store.break_option != "--token":
        raise Problem(400, "holds of this store need not have a token; break this one with dibs break NAME --holder ID")
    if not isinstance(token, int) or isinstance(token, bool):
        raise Problem(400, "token must be a number")
    if not isinstance(reason, str) or not reason.strip():
        raise Problem(400, "a reason is needed")
    if len(reason) > LONGEST_REASON:
        raise Problem(400, f"the reason has more than {LONGEST_REASON} characters")
    try:
        return _break(store.client, name, token, reason.strip(), client)
    except NotHeld:
        raise Problem(409, f"nobody holds it with token {token} any more; nothing was changed") from None
    except BadName as error:
        raise Problem(400, clip(error, 500)) from None
    except StoreUnavailable as error:
        raise Problem(503, f"{clip(error, 500)} (it is not known whether the lock was broken)") from None
    except DibsError as error:
        raise Problem(502, clip(error, 500)) from None


def _break(client: dibs.Client, name: str, token: int, reason: str, by: object) -> str:
    info = client.inspect(name)
    holder = next((one for one in info.holders if one.token == token), None)
    if holder is None:
        raise NotHeld("no such holder", name=name)
    address = by[0] if isinstance(by, tuple | list) and by else "?"
    what = break_log.describe(holder, reason, by=f"{login()} (dashboard, {address})")
    client.break_(name, token=token)
    said = f'"{name}" on {place(client)}: broken by {what.breaker}: {what.what}; {what.why}'
    break_log.log(said)
    break_log.record(client, name, what)
    return said
