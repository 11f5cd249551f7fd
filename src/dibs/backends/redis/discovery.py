"""Ask sentinels or nodes which servers there are: blocking, with a deadline.

A silent server must not use up the time of the others. Each gets a share of it, at first no more than `QUICK` seconds.
If that was too short and none answered, each gets twice as much in the next round.

redis-py's errors are translated here. A server that does not know a command repeats its arguments in the error text,
and these may contain the password. So that part is cut off, and no error of redis-py is chained to ours.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterable, Mapping
from socket import gaierror
from ssl import SSLError
from typing import Any, TypeVar

from redis.connection import AbstractConnection
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as Silent

from dibs.backends.common import tls
from dibs.backends.redis.settings import Endpoint
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable

T = TypeVar("T")
Question = Callable[[Endpoint, float], T]
"""Asks one server, with this many seconds for each step; raises errors of redis-py or ours."""
QUICK = 1.0
LONGEST = 8.0
_STEPS = 3
"""Connecting, the login and the reply may each take that long."""
_MOST = 200
_STEP = "check that the server runs there, and whether it requires TLS"


class Discovery:
    """The discovery requests of one client."""

    def __init__(self, store: str, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._patience = QUICK
        self._learned = 0
        self._ongoing: _thread.LockType | None = None

    def in_turn(self, endpoints: Iterable[Endpoint], question: Question[T], until: float, what: str) -> T:
        """The first answer. Raises StoreUnavailable with `what` and the reasons, or another StoreError if a server
        refused for good."""
        failures: dict[Endpoint, StoreError] = {}
        to_ask, patience = list(dict.fromkeys(endpoints)), self._patience
        for number, endpoint in enumerate(to_ask):
            share = (until - self._now()) / (len(to_ask) - number)
            if share <= 0:
                failures[endpoint] = StoreUnavailable("no time was left to ask")
                continue
            try:
                answer = question(endpoint, min(patience, share / _STEPS))
            except RedisError as error:
                failures[endpoint] = self.noted(error, endpoint, patience)
            except StoreError as error:
                failures[endpoint] = error
            else:
                self._patience = QUICK
                return answer
        raise _summary(failures, self._store, what)

    def noted(self, error: RedisError, endpoint: Endpoint, patience: float) -> StoreError:
        """Translate an error; after a timeout, be more patient next time."""
        if isinstance(error, Silent):
            self._patience = min(2 * patience, LONGEST)
        return translated(error, endpoint)

    def once(self, learn: Callable[[], None], until: float) -> None:
        """Call `learn`, but not twice at the same time. A second thread waits for the first, for at most half of its
        time, and asks only if the first one learned nothing.

        Each call makes a new lock and acquires it before any other thread sees it. So neither an interrupt nor a fork
        leaves a lock that stays acquired forever.
        """
        learned, theirs = self._learned, self._ongoing
        if theirs is not None and theirs.acquire(timeout=max((until - self._now()) / 2, 0.0)):
            theirs.release()
            if self._learned != learned:
                return
        ours = _thread.allocate_lock()
        ours.acquire()
        self._ongoing = ours
        try:
            learn()
            self._learned += 1
        finally:
            self._ongoing = None
            ours.release()


def ask(connection: AbstractConnection, *words: str | int) -> Any:
    """Connect, send one command, read its reply, disconnect."""
    try:
        connection.connect()
        connection.send_command(*words)
        return connection.read_response()
    finally:
        connection.disconnect()


def facts(reply: object) -> dict[bytes, Any]:
    """Parse names and values: a flat list or, in RESP3, a map."""
    if isinstance(reply, dict):
        pairs = reply.items()
    elif isinstance(reply, list):
        pairs = zip(reply[::2], reply[1::2], strict=False)  # type: ignore[assignment]  # pairs, too
    else:
        return {}
    return {name: value for name, value in pairs if isinstance(name, bytes)}


def translated(error: RedisError, endpoint: Endpoint) -> StoreError:
    """Our error for one that redis-py raised while connecting, logging in or asking."""
    here = named(endpoint)
    said = printable(str(error).partition(", with args")[0][:_MOST])
    below = error.__cause__ or error.__context__
    if isinstance(below, SSLError):
        return tls.failure(here, below)
    if isinstance(error, AuthenticationError | AuthorizationError):
        return StoreError(f"{here} refuses the login: {said}", step="check user and password")
    if isinstance(error, NoPermissionError):
        return StoreError(f"{here} refuses: {said}", step="give this user the rights that `dibs doctor` prints")
    if isinstance(error, Silent):
        return StoreUnavailable(f"{here} does not answer", step=_STEP)
    if isinstance(error, Disconnected):
        why = printable(below.strerror) if isinstance(below, OSError) and below.strerror else said
        step = "check the host name" if isinstance(below, gaierror) else _STEP
        return StoreUnavailable(f"no connection to {here}: {why}", step=step)
    if isinstance(error, ResponseError):
        return StoreError(f"{here} refuses: {said}", step="check the server's log")
    return StoreError(f"the server at {here} is not Redis: {said}", step="check host and port")


def named(endpoint: Endpoint) -> str:
    if isinstance(endpoint, str):
        return printable(endpoint)
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{printable(host)}:{port}"


def _summary(failures: Mapping[Endpoint, StoreError], store: str, what: str) -> StoreError:
    for failure in failures.values():
        if not isinstance(failure, StoreUnavailable):
            return failure.about(None, store)
    why = "; ".join(failure.what for failure in failures.values())
    return StoreUnavailable(
        f"{what}: {why}", store=store, step="check that the servers run, and that this machine can reach them"
    )
