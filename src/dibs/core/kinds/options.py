"""The options of every lock: their checks, and their meaning in a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from dibs.core.client import Client
from dibs.core.deadline import FOREVER, LONGEST_LEASE, lease_of, margin, patience, seconds
from dibs.core.queue import EXPIRING_SEMAPHORE, FAIR_MUTEX, FENCED_MUTEX, FOREIGN, LEASES
from dibs.errors import Unsupported


class Unset:
    """A timeout that was not given: use that of the lock."""

    def __repr__(self) -> str:
        return "<the lock's>"


UNSET = Unset()
MOST = 1_000_000
_CO_COROUTINE = 0x80
"""The flag that marks the code of an `async def`: `inspect.CO_COROUTINE`."""


class Options(NamedTuple):
    timeout: float | None = None
    lease: float | None = None
    renew: bool = True
    fenced: bool = False
    max_hold: float | None = None
    fair: bool | None = None
    owner: str | None = None
    info: Mapping[str, Any] = MappingProxyType({})
    on_lost: Callable[[Any], object] | None = None
    cancel_on_lost: bool = False

    @classmethod
    def checked(
        cls,
        timeout: object = None,
        lease: object = None,
        renew: object = True,
        fenced: object = False,
        max_hold: object = None,
        fair: object = None,
        owner: object = None,
        info: object = None,
        on_lost: object = None,
        cancel_on_lost: object = False,
    ) -> Options:
        for what, flag in (("renew", renew), ("cancel_on_lost", cancel_on_lost), ("fenced", fenced)):
            if not isinstance(flag, bool):
                raise TypeError(f"{what} must be True or False, not {flag!r}")
        if on_lost is not None and not callable(on_lost):
            raise TypeError(f"on_lost must be a function that takes the hold, not {on_lost!r}")
        if on_lost is not None and _is_async(on_lost):
            raise TypeError(f"on_lost must be a plain function: nothing would await the coroutine of {on_lost!r}")
        if fair is not None and not isinstance(fair, bool):
            raise TypeError(f"fair must be True, False or None, not {fair!r}")
        return cls(
            patience(timeout),
            None if lease is None else lease_of(lease),
            renew is True,
            fenced is True,
            None if max_hold is None else seconds(max_hold, "max_hold", least=0.001),
            fair,
            checked_owner(owner),
            checked_info(info),
            on_lost,
            cancel_on_lost is True,
        )


def _is_async(function: Any) -> bool:
    """Whether a call returns a coroutine. Not by `inspect`, which is slow to import."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is not None and bool(code.co_flags & _CO_COROUTINE)


def limit_of(own: float | None, timeout: object, blocking: object) -> float | None:
    """The timeout of an acquire: its own, or else that of the lock."""
    if not isinstance(blocking, bool):
        raise TypeError(f"blocking must be True or False, not {blocking!r}")
    limit = own if isinstance(timeout, Unset) else patience(timeout)
    if blocking:
        return limit
    if not isinstance(timeout, Unset) and limit != 0:
        raise ValueError("blocking=False means timeout=0: give only one of them")
    return 0.0


def checked_owner(owner: object) -> str | None:
    if owner is not None and not isinstance(owner, str):
        raise TypeError(f'owner must be a str, "client" or None, not {owner!r}')
    if owner is not None and not owner.strip():
        raise ValueError("owner must not be blank")
    return owner


def checked_info(info: object) -> Mapping[str, Any]:
    if info is None:
        return {}
    if not isinstance(info, Mapping) or not all(isinstance(key, str) for key in info):
        raise TypeError(f"info must be a small dict with str keys, not {info!r}")
    return dict(info)


class Terms(NamedTuple):
    """The `lease` and `renew` of a lock, as its store implements them."""

    lease: float
    renew: bool
    ends_after: float = FOREVER


def terms_of(client: Client, name: str, options: Options, form: str | None) -> Terms:
    """Where claims live by the session, the store cannot end one earlier. There `renew=False` ends the hold in this
    process, and a renewed lease that is shorter than the session is an error. In a FOREIGN store the permits of a
    semaphore have no lease."""
    if form == "semaphore":
        return Terms(LONGEST_LEASE, True)
    lease = client.lease if options.lease is None else options.lease
    if LEASES in client.store.capabilities:
        return Terms(lease, options.renew)
    if not options.renew:
        return Terms(client.lease, True, lease - margin(lease))
    if lease < client.lease:
        raise client.error(
            Unsupported, name, f"a lease of {lease:g} s is not possible where locks live by the client's session, "
            f"which lasts {client.lease:g} s",
            step=f"connect with lease={lease:g}, or limit the hold: renew=False, or max_hold={lease:g}",
        )  # fmt: skip
    return Terms(lease, True)


def form_of(client: Client, name: str, kind: str, options: Options) -> str | None:
    """How a FOREIGN store keeps this lock (`Claim.kind`); None: the store has one form for each kind."""
    if FOREIGN not in client.store.capabilities:
        return None
    if (reason := _impossible(kind, options)) is not None:
        what, step = reason
        raise client.error(Unsupported, name, what, step=step)
    if kind == "mutex":
        return FAIR_MUTEX if options.fair else FENCED_MUTEX if options.fenced else kind
    return kind if kind == "rw" or options.renew else EXPIRING_SEMAPHORE


def _impossible(kind: str, options: Options) -> tuple[str, str] | None:
    """The reason why a FOREIGN store cannot make this lock, and the next step; None: it can."""
    if kind not in ("mutex", "rw", "semaphore"):
        return f"there is no {kind} in this layout", "use a client of another layout for it"
    if kind != "mutex" and options.fenced:
        return "only lock and rlock have fencing tokens in this layout (fenced=True)", "leave fenced out"
    if kind != "mutex" and options.fair:
        return "only lock and rlock have an order among waiters in this layout (fair=True)", "leave fair out"
    if options.fair and options.fenced:
        return "a fair lock has no fencing token in this layout (fair=True, fenced=True)", "choose one of the two"
    if kind == "semaphore" and options.renew and options.lease is not None:
        what = "a permit with a lease ends with it in this layout, as it is not renewed"
        return what, "give renew=False as well, or leave lease out: then a permit is taken until it is released"
    return None


def count_of(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {value!r}")
    if not 1 <= value <= MOST:
        raise ValueError(f"{what} must be from 1 to {MOST}, not {value}")
    return value
