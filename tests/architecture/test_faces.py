"""Both faces are one text: the same classes, methods and parameters; in asyncio what may do I/O is awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest

import dibs
import dibs.aio
import dibs.blocking

AWAITED = frozenset(
    {"acquire", "release", "locked", "revoke", "downgrade", "leader", "inspect", "break_", "close", "wait", "doctor"}
    | {"arm", "count_down", "count", "get", "set", "update", "admit"}
)
ITERATED = frozenset({"locks", "watch"})
"""`async for` in asyncio."""
API_CLASSES = (
    "Client", "Lock", "RLock", "RWLock", "Semaphore", "Striped", "Election", "Latch", "Cell", "Fence", "Hold",
    "LockInfo", "Participant",
)  # fmt: skip
TWINS = {"__enter__": "__aenter__", "__exit__": "__aexit__"}


def public(module: ModuleType) -> dict[str, Any]:
    """What a face defines itself and shows."""
    shown = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in shown.items() if value.__module__.startswith(module.__name__)}


def classes(module: ModuleType) -> dict[str, type]:
    return {name: value for name, value in public(module).items() if inspect.isclass(value)}


def members(cls: type) -> dict[str, Any]:
    """Public methods and properties with those that make a `with`, inherited ones too, by their blocking names."""
    back = {twin: name for name, twin in TWINS.items()}
    found: dict[str, Any] = {}
    for name in dir(cls):
        if name in back or name in TWINS or not name.startswith("_"):
            found[back.get(name, name)] = inspect.getattr_static(cls, name)
    return found


def shape(function: Callable[..., Any]) -> list[tuple[str, str, object, object]]:
    """Names, kinds, defaults and types of the parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [(one.name, one.kind.name, one.default, one.annotation) for one in parameters]


BLOCKING, AIO = classes(dibs.blocking), classes(dibs.aio)
METHODS = [(cls, name) for cls in sorted(AIO) for name, value in members(AIO[cls]).items() if inspect.isfunction(value)]


def test_both_faces_have_the_same_public_names() -> None:
    assert set(public(dibs.blocking)) == set(public(dibs.aio))
    assert {"Client", "Lock", "Hold", "connect", "multi"} <= set(public(dibs.aio))


def test_the_public_classes_are_there_in_both_faces() -> None:
    assert [name for name in API_CLASSES if not (hasattr(dibs, name) and hasattr(dibs.aio, name))] == []


@pytest.mark.parametrize("name", sorted(BLOCKING.keys() & AIO.keys()))
def test_a_class_has_the_same_members_and_bases(name: str) -> None:
    """Of the methods also the same parameters."""
    one, other = members(BLOCKING[name]), members(AIO[name])
    assert set(one) == set(other)
    assert [base.__name__ for base in BLOCKING[name].__mro__] == [base.__name__ for base in AIO[name].__mro__]
    for key, value in one.items():
        assert isinstance(value, property) == isinstance(other[key], property), key
        if inspect.isfunction(value):
            assert shape(value) == shape(other[key]), key


def test_a_function_takes_the_same_parameters() -> None:
    for name in ("connect", "multi"):
        assert shape(getattr(dibs.blocking, name)) == shape(getattr(dibs.aio, name)), name


def test_connect_takes_what_the_contract_says() -> None:
    said = "(url=None, *, lease=30.0, owner=None, info=None, namespace='dibs', retry=10.0, **store_options)"
    bare = [
        one.replace(annotation=inspect.Parameter.empty) for one in inspect.signature(dibs.connect).parameters.values()
    ]
    assert str(inspect.Signature(bare)) == said


def test_asyncio_has_one_more_option() -> None:
    one, other = dibs.blocking.LockOptions.__annotations__, dibs.aio.LockOptions.__annotations__
    assert set(other) - set(one) == {"cancel_on_lost"}
    assert set(one) == {"timeout", "lease", "renew", "max_hold", "fair", "owner", "info", "on_lost"}


def test_in_asyncio_exactly_what_may_do_io_is_awaited() -> None:
    for cls, name in METHODS:
        method = members(AIO[cls])[name]
        said = str(inspect.signature(method).return_annotation)
        awaited = inspect.iscoroutinefunction(method) or said.startswith("Awaitable[")
        iterated = inspect.isasyncgenfunction(method) or said.startswith("AsyncIterator[")
        assert awaited == (name in AWAITED or name in TWINS), f"{cls}.{name}"
        assert iterated == (name in ITERATED), f"{cls}.{name}"


def test_the_blocking_face_awaits_nothing() -> None:
    for cls, name in METHODS:
        method = members(BLOCKING[cls])[name]
        assert not inspect.iscoroutinefunction(method), f"{cls}.{name}"
        assert not inspect.isasyncgenfunction(method), f"{cls}.{name}"


def test_the_awaited_are_awaitable_and_the_others_are_not() -> None:
    """The same as above, asked of living objects."""

    async def main() -> None:
        client = dibs.aio.connect("memory://architecture")
        lock = client.rwlock("faces").write

        async def now(found: Awaitable[Any]) -> Any:
            assert inspect.isawaitable(found), found
            return await found

        hold = await now(lock.acquire(timeout=0))
        assert hold is not None
        assert hold.check() is None
        assert lock.owned() is True
        assert isinstance(hold.remaining, float)
        assert hold.lost.is_set() is False
        assert hold.revoke_requested.is_set() is False
        assert await now(hold.lost.wait(0)) is False
        assert await now(lock.locked()) is True
        await now(lock.revoke())
        await now(hold.downgrade())
        info = await now(client.inspect("faces"))
        assert [one.name async for one in client.locks()] == [info.name]
        await now(client.break_("faces", token=info.holders[0].token))
        with pytest.raises(dibs.NotHeld):
            await now(client.break_("faces", token=info.holders[0].token))
        again = await now(client.lock("release").acquire())
        await now(again.release())
        await now(client.close())

    asyncio.run(main())
