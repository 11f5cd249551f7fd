"""The sync API where the async one is meant, and the other way round."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import dibs
import dibs.aio
import dibs.blocking
from dibs.bases import WrongWith
from dibs.blocking import entry

PATIENCE = 60.0
URL = "memory://wrong-api"


@pytest.fixture
def client() -> Iterator[dibs.Client]:
    with dibs.connect(URL) as client:
        yield client


def both_ends(manager: Any) -> None:
    with manager:
        pass


CALLS: dict[str, Callable[[dibs.Client], object]] = {
    "with": lambda client: both_ends(client.lock("a")),
    "acquire": lambda client: client.lock("a").acquire(timeout=0).release(),  # type: ignore[union-attr]
    "multi": lambda client: both_ends(dibs.multi(client.lock("a"), client.lock("b"))),
    "permits": lambda client: both_ends(client.semaphore("s", 3).permits(2)),
    "locked": lambda client: client.lock("a").locked(),
    "revoke": lambda client: client.lock("a").revoke(),
    "inspect": lambda client: client.inspect("a"),
    "locks": lambda client: list(client.locks()),
    "doctor": lambda client: client.doctor(),
    "ping": lambda client: client.ping(),
    "leader": lambda client: client.election("e").leader(),
    "latch": lambda client: client.latch("a").wait(0),
    "cell": lambda client: client.cell("a").get(),
    "fence": lambda client: client.fence("a").admit(1),
    "synchronized": lambda client: client.synchronized("a")(len)("b"),
}


def test_in_a_running_loop_the_sync_api_warns_once(client: dibs.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(name: str) -> None:
        CALLS[name](client)
        CALLS[name](client)

    for name in CALLS:
        monkeypatch.setattr(entry, "_told", [])
        with pytest.warns(RuntimeWarning, match=r"running event loop.*dibs\.aio\.connect\(\)") as seen:
            asyncio.run(main(name))
        assert [one.filename for one in seen] == [__file__], name


def test_no_warning_without_a_running_loop(client: dibs.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor in a thread of an application that has one, nor for what ends a hold."""

    async def main() -> None:
        await asyncio.to_thread(CALLS["with"], client)
        assert hold is not None
        hold.release()
        lock.release()
        client.close()

    monkeypatch.setattr(entry, "_told", [])
    with warnings.catch_warnings(action="error"):
        CALLS["with"](client)
        hold, lock = client.lock("b").acquire(), client.lock("c")
        lock.acquire()
        asyncio.run(main())
    assert not entry._told


def test_where_the_warning_is_an_error_nothing_is_taken(client: dibs.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(name: str) -> None:
        CALLS[name](client)

    for name in ("with", "acquire", "inspect"):
        monkeypatch.setattr(entry, "_told", [])
        with warnings.catch_warnings(action="error"), pytest.raises(RuntimeWarning):
            asyncio.run(main(name))
        assert client.inspect("a").holders == ()


def test_the_sync_api_does_not_import_asyncio() -> None:
    code = f"""
import sys, dibs
with dibs.connect({URL!r}) as client, client.lock("a"):
    assert client.lock("a").locked()
assert "asyncio" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, check=True)


def test_with_on_the_other_api_says_which_import_is_meant(client: dibs.Client) -> None:
    """Every class that supports `with` or `async with` says so."""

    async def main() -> None:
        said = r'a dibs\.Lock is of the sync API: write "with".*import dibs\.aio'
        with pytest.raises(TypeError, match=said):
            async with client.lock("a"):  # type: ignore[attr-defined]
                pass
        async with dibs.aio.connect(URL) as other:
            said = r'a dibs\.aio\.Lock is of the async API: write "async with".*import dibs\)'
            with pytest.raises(TypeError, match=said), other.lock("a"):  # type: ignore[attr-defined]
                pass

    asyncio.run(main())
    assert client.inspect("a").holders == ()
    assert not hasattr(client.lock("a"), "__aenter__")
    for api, own, other in ((dibs.blocking, "__enter__", "__aenter__"), (dibs.aio, "__aenter__", "__enter__")):
        classes = [
            value for name in api.__all__ if inspect.isclass(value := getattr(api, name)) and hasattr(value, own)
        ]
        assert len(classes) >= 9
        for cls in classes:
            assert isinstance(inspect.getattr_static(cls, other, None), WrongWith), cls


class Caller:
    async def method(self, hold: object) -> None: ...

    async def __call__(self, hold: object) -> None: ...


@pytest.mark.parametrize("api", [dibs, dibs.aio])
def test_on_lost_is_no_coroutine_function(api: Any) -> None:
    client = api.connect(URL)
    for on_lost in (Caller().method, Caller(), partial(Caller.method, Caller()), Caller.method):
        with pytest.raises(TypeError, match="on_lost must be a plain function: nothing would await"):
            client.lock("a", on_lost=on_lost)
    for plain in (print, partial(print, "lost"), [].append, Caller, lambda hold: Caller().method(hold)):
        client.lock("a", on_lost=plain)


def test_a_forgotten_await_names_the_method() -> None:
    async def main() -> None:
        async with dibs.aio.connect(URL) as client:
            lock, calls = client.lock("a"), client.semaphore("s", 3)
            both = dibs.aio.multi(lock, calls)
            for one in (lock, calls, both):
                with pytest.warns(RuntimeWarning, match="coroutine 'acquire' was never awaited"):
                    one.acquire()  # type: ignore[unused-coroutine]
                await one.acquire()
                with pytest.warns(RuntimeWarning, match="coroutine 'release' was never awaited"):
                    one.release()  # type: ignore[unused-coroutine]
                await one.release()

    asyncio.run(main())
