"""The primary of a service, from the sentinels that watch it.

A sentinel may be the last to hear of a fail-over, and a primary that was cut off may not know that it is none any
more: what a sentinel says is believed once that server itself says that it is a primary. No thread, no subscription:
who finds the primary silent or READONLY asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from dibs.backends.redis.address import Address
from dibs.backends.redis.asking import Asking, ask, facts, named
from dibs.backends.redis.settings import Place
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable


class Sentinel:
    def __init__(self, address: Address, now: Callable[[], float]) -> None:
        self._address = address
        self._asking = Asking(address.shown, now)
        self._service = address.service or ""
        self._sentinels = address.places
        """In the order in which they are asked: who answered is the first."""
        self._primary: Place | None = None

    def locate(self, key: bytes) -> Place | None:
        return self._primary

    def learn(self, until: float) -> None:
        self._asking.once(lambda: self._learn(until), until)

    def forget(self, place: Place) -> None:
        if self._primary == place:
            self._primary = None

    def moved(self, key: bytes, place: Place) -> None:
        pass

    def reached(self, told: tuple[str, int], asked: Place) -> Place:
        return self._address.reachable((told[0] or asked[0], told[1]))

    def all(self) -> list[Place]:
        primary = self._primary
        return [] if primary is None else [primary]

    def _learn(self, until: float) -> None:
        doubted: dict[Place, StoreError] = {}

        def question(sentinel: Place, patience: float) -> tuple[Place, Place]:
            primary = self._primary_by(sentinel, patience)
            if primary not in doubted:
                doubt = self._doubt(primary, patience)
                if doubt is None:
                    return sentinel, primary
                doubted[primary] = doubt
            raise doubted[primary]

        what = f'no sentinel leads to the primary of "{printable(self._service)}"'
        sentinel, primary = self._asking.in_turn(self._sentinels, question, until, what)
        self._sentinels = (sentinel, *(other for other in self._sentinels if other != sentinel))
        self._primary = primary

    def _primary_by(self, sentinel: Place, patience: float) -> Place:
        def told(*words: str) -> Any:
            return ask(self._address.sentinel_connection(sentinel, patience), "SENTINEL", *words)

        least = self._address.least_sentinels
        if least and (seen := _others_seen(told("MASTERS"), self._service)) < least:
            raise StoreUnavailable(f"{named(sentinel)} sees {seen} other sentinels, of the {least} that it should")
        answer = told("GET-MASTER-ADDR-BY-NAME", self._service)
        if answer is None:
            raise _unknown(sentinel, self._service, told("MASTERS"))
        match answer:
            case [bytes() as host, bytes() as port] if port.isdigit():
                return self._address.reachable((host.decode(errors="replace"), int(port)))
        raise StoreUnavailable(f"{named(sentinel)} does not answer as a sentinel does")

    def _doubt(self, primary: Place, patience: float) -> StoreError | None:
        """Why this is not the primary, now."""
        try:
            answer = ask(self._address.connection(primary, patience), "ROLE")
        except RedisError as error:
            return self._asking.noted(error, primary, patience)
        role = answer[0] if isinstance(answer, list) and answer else None
        if role == b"master":
            return None
        return StoreUnavailable(f"{named(primary)} is said to be the primary, and is not, or not yet")


def _others_seen(masters: object, service: str) -> int:
    seen = _services(masters).get(service, {}).get(b"num-other-sentinels")
    return int(seen) if isinstance(seen, bytes) and seen.isdigit() else 0


def _services(masters: object) -> dict[str, dict[bytes, Any]]:
    """All that a sentinel watches, by their names."""
    told = [facts(service) for service in masters] if isinstance(masters, list) else []
    named = ((service.get(b"name"), service) for service in told)
    return {name.decode(errors="replace"): service for name, service in named if isinstance(name, bytes)}


def _unknown(sentinel: Place, service: str, masters: object) -> StoreError:
    known = ", ".join(f'"{printable(name)}"' for name in _services(masters))
    return StoreError(
        f'{named(sentinel)} watches no service "{printable(service)}"; it watches {known or "none"}',
        step="name one of them in the URL" if known else "look at the sentinel's configuration",
    )
