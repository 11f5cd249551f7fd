"""Bad input is refused with a clear, typed error before any I/O: once for each API, on a store that must not appear."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import chain, product
from math import inf, nan
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import APIS

SECRET = "s3cr3t"
BAD_NAMES: dict[str, object] = {
    "empty": "",
    "blank": "   ",
    "513 bytes": "x" * 513,
    "1 MB": "x" * 2**20,
    "a command after a line break": "\r\nFLUSHALL\r\n",
    "lone surrogate": "a\ud800b",
    "NUL": "a\x00b",
    "newline": "a\nb",
    "escape": "\x1b[2J",
    "delete": "a\x7f",
    "C1 control": "a\x85b",
    "bytes": b"a",
    "int": 5,
    "None": None,
    "list": ["a"],
}
NAMING: dict[str, Callable[[Any, Any], Any]] = {
    "lock": lambda client, name: client.lock(name),
    "rlock": lambda client, name: client.rlock(name),
    "rwlock": lambda client, name: client.rwlock(name),
    "semaphore": lambda client, name: client.semaphore(name, 3),
    "striped": lambda client, name: client.striped(name, 3),
    "inspect": lambda client, name: client.inspect(name),
    "break_": lambda client, name: client.break_(name, token=1),
}
BAD_TIMES: list[object] = [nan, inf, -inf, -1, -0.001, timedelta(seconds=-1), True, "5", [], frozenset()]
TOO_SHORT: list[tuple[str, object]] = [("lease", 0), ("lease", 0.49), ("lease", timedelta(0)), ("max_hold", 0)]


def nested(depth: int) -> dict[str, Any]:
    info: dict[str, Any] = {}
    for _ in range(depth):
        info = {"a": info}
    return info


def circular() -> dict[str, Any]:
    info: dict[str, Any] = {}
    info["self"] = info
    return info


BAD_INFO: dict[str, Callable[[], object]] = {
    "an object": lambda: {"a": frozenset()},
    "bytes": lambda: {"a": b"x"},
    "a set": lambda: {"a": {1}},
    "too large": lambda: {"a": "x" * 20_000},
    "circular": circular,
    "too deep": lambda: nested(100_000),
    "a list": lambda: [1],
    "a str": lambda: "a",
    "keys that are no text": lambda: {1: 2},
}
BAD_URLS: dict[str, tuple[object, type[Exception]]] = {
    "an unknown scheme": (f"gopher://ana:{SECRET}@host", ValueError),
    "no scheme": ("localhost:6379", ValueError),
    "a path": ("/var/lib/locks.db", ValueError),
    "empty scheme": ("://host", ValueError),
    "a broken host": (f"redis://:{SECRET}@[host", ValueError),
    "a line break": (f"redis://ana:{SECRET}@host\n", ValueError),
    "a port too high": ("memory://name:99999", ValueError),
    "a port for memory": ("memory://name:6379", ValueError),
    "a login for memory": (f"memory://ana:{SECRET}@host", ValueError),
    "an option for memory": (f"memory://host?password={SECRET}", ValueError),
    "a newline": ("memory://a\nb", ValueError),
    "NUL": ("sqlite:///a\x00.db", ValueError),
    "sqlite without a path": ("sqlite://", ValueError),
    "sqlite with a host": (f"sqlite://ana:{SECRET}@host/a.db", ValueError),
    "bytes": (b"memory://", TypeError),
    "a number": (5, TypeError),
    "redis with several": (f"redis://ana:{SECRET}@h1,h2", ValueError),
    "etcd, later": ("etcd://localhost/db", dibs.Unsupported),
    "a quorum of nobody": ([], ValueError),
    "a quorum with somebody twice": (["redis://a", "redis://b", "redis://a"], ValueError),
    "a quorum with files": (["redis://a", "sqlite:///a.db", "redis://b"], dibs.Unsupported),
}

Cases = Iterator[tuple[object, Callable[[], Any], type[Exception] | tuple[type[Exception], ...], str]]
"""A description, the call, the error that it must raise, and a pattern that its text must match."""
WRONG = (TypeError, ValueError)


def names(api: ModuleType, client: Any) -> Cases:
    for kind, case in product(NAMING, BAD_NAMES):
        yield (kind, case), partial(NAMING[kind], client, BAD_NAMES[case]), dibs.BadName, ""
    for case, name in BAD_NAMES.items():
        if name != "":  # the empty namespace is allowed
            yield case, partial(api.connect, "memory://", namespace=name), ValueError, ""


def times(api: ModuleType, client: Any) -> Cases:
    makers = (client.lock, client.rlock, client.rwlock)
    for make, option, value in product(makers, ("timeout", "lease", "max_hold"), BAD_TIMES):
        yield (make, option, value), partial(make, "a", **{option: value}), WRONG, option
    for option, value in TOO_SHORT:
        yield (option, value), partial(client.lock, "a", **{option: value}), ValueError, option
    locks = (client.lock("a"), client.semaphore("b", 2), api.multi(client.lock("a"), client.lock("c")))
    for lock, value in product(locks, BAD_TIMES):
        yield (lock, value), partial(lock.acquire, timeout=value), WRONG, "timeout"
    for option, value in product(("lease", "retry"), BAD_TIMES):
        yield (option, value), partial(api.connect, "memory://", **{option: value}), WRONG, option


def blocking(api: ModuleType, client: Any) -> Cases:
    for value in (None, 0, 1, "no"):
        yield value, partial(client.lock("a").acquire, blocking=value), TypeError, "blocking"
    for timeout in (5, None):
        yield timeout, partial(client.lock("a").acquire, blocking=False, timeout=timeout), ValueError, "blocking"


def counts(api: ModuleType, client: Any) -> Cases:
    for make in (client.semaphore, client.striped):
        for count in (0, -1, -(10**30), 10**30, 1_000_001):
            yield (make, count), partial(make, "a", count), ValueError, "must be from 1 to"
        for wrong in (True, False, "3", 3.0, None, [3]):
            yield (make, wrong), partial(make, "a", wrong), TypeError, "must be an int"


def infos(api: ModuleType, client: Any) -> Cases:
    for case, make in BAD_INFO.items():
        yield case, lambda make=make: client.lock("a", info=make()).acquire(timeout=0), WRONG, "info"
        yield ("client", case), lambda make=make: api.connect("memory://", info=make()), WRONG, "info"
    half = {"a": "x" * 10_000}
    informed = api.connect("memory://", info=half)
    yield "together", lambda: informed.lock("a", info={"b": half["a"]}).acquire(timeout=0), ValueError, "info"


def owners(api: ModuleType, client: Any) -> Cases:
    for owner, error in (("", ValueError), ("  ", ValueError), (5, TypeError), (b"a", TypeError)):
        yield owner, partial(client.rlock, "a", owner=owner), error, "owner"
        yield ("client", owner), partial(api.connect, "memory://", owner=owner), error, "owner"
    large = client.rlock("a", owner="x" * 20_000)
    yield "too large", partial(large.acquire, timeout=0), ValueError, "too large"


def options(api: ModuleType, client: Any) -> Cases:
    yield "of a lock", partial(client.lock, "a", tiemout=5), TypeError, "tiemout"
    yield "of a client", partial(api.connect, "memory://", tiemout=5), TypeError, "tiemout"
    for option, value in product(("renew", "fair", "cancel_on_lost", "on_lost"), (0, 1, "yes")):
        yield (option, value), partial(client.lock, "a", **{option: value}), TypeError, option
    yield "renew is None", partial(client.lock, "a", renew=None), TypeError, "renew"


def urls(api: ModuleType, client: Any) -> Cases:
    for case, (url, error) in BAD_URLS.items():
        yield case, partial(api.connect, url), error, ""


ALL_CASES = (names, times, blocking, counts, infos, owners, options, urls)


def refusal(api: str, call: Callable[[], Any]) -> Exception | None:
    async def awaited() -> None:
        if inspect.isawaitable(found := call()):
            await found

    try:
        asyncio.run(awaited()) if api == "aio" else call()
    except Exception as error:
        return error
    return None


def shown(error: Exception) -> str:
    return f"{error} {getattr(error, 'store', '')} {error.__cause__}"


@pytest.mark.parametrize("api", APIS)
def test_bad_input_is_refused_before_any_io(api: str, tmp_path: Path) -> None:
    path, wrong = tmp_path / "never.db", []
    client = APIS[api].connect(f"sqlite:///{path}")
    for case, call, error, said in chain.from_iterable(cases(APIS[api], client) for cases in ALL_CASES):
        raised = refusal(api, call)
        if not isinstance(raised, error) or not re.search(said, str(raised)):
            wrong.append(f"{str(case)[:200]}: {raised!r:.300}")
        elif not str(raised).isprintable() or SECRET in shown(raised) + repr(raised):
            wrong.append(f"{str(case)[:200]}: shows what it must not")
    assert not wrong, "\n".join(wrong)
    assert not path.exists()
    assert refusal(api, client.close) is None
