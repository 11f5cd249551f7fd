"""Both APIs are one: the same classes, methods and parameters. The async API awaits every method that does I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, get_overloads

import pytest

import dibs
import dibs.aio
import dibs.blocking
from dibs.bases import AsyncWith, SyncWith, WrongWith
from dibs.core.kinds.options import Options

AWAITED = frozenset({
    "acquire", "release", "locked", "revoke", "downgrade", "leader", "inspect", "break_", "close", "wait", "doctor",
    "ping", "arm", "count_down", "count", "get", "set", "update", "admit",
})  # fmt: skip
ITERATED = frozenset({"locks", "watch"})
"""`async for` in asyncio."""
TWINS = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
MAKERS = ("lock", "rlock", "rwlock", "semaphore", "striped", "election", "synchronized")
"""The methods of a client that take the options of a lock."""


def public(module: ModuleType) -> dict[str, Any]:
    """The public names that an API defines itself."""
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
            value = inspect.getattr_static(cls, name)
            if not isinstance(value, WrongWith):
                found[back.get(name, name)] = value
    return found


def shape(function: Callable[..., Any]) -> list[tuple[str, str, object, object]]:
    """Names, kinds, defaults and types of the parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [(one.name, one.kind.name, one.default, one.annotation) for one in parameters]


def bases(cls: type) -> list[str]:
    """Without the two that say which `with` is meant."""
    return [base.__name__ for base in cls.__mro__ if base not in (SyncWith, AsyncWith)]


BLOCKING, AIO = classes(dibs.blocking), classes(dibs.aio)
METHODS = [(cls, name) for cls in sorted(AIO) for name, value in members(AIO[cls]).items() if inspect.isfunction(value)]


def test_both_apis_have_the_same_public_names() -> None:
    assert set(public(dibs.blocking)) == set(public(dibs.aio))
    assert {"Client", "Lock", "Hold", "connect", "multi"} <= set(public(dibs.aio))


@pytest.mark.parametrize("name", sorted(BLOCKING.keys() & AIO.keys()))
def test_a_class_has_the_same_members_and_bases(name: str) -> None:
    """Methods must also take the same parameters."""
    one, other = members(BLOCKING[name]), members(AIO[name])
    assert set(one) == set(other)
    assert bases(BLOCKING[name]) == bases(AIO[name])
    for key, value in one.items():
        assert isinstance(value, property) == isinstance(other[key], property), key
        if inspect.isfunction(value):
            assert shape(value) == [one for one in shape(other[key]) if one[0] != "cancel_on_lost"], key


def test_a_function_takes_the_same_parameters() -> None:
    for name in ("connect", "multi"):
        assert shape(getattr(dibs.blocking, name)) == shape(getattr(dibs.aio, name)), name


@pytest.mark.parametrize("api", [dibs, dibs.aio])
def test_every_maker_of_a_lock_has_the_same_options(api: ModuleType) -> None:
    """The one source of names and defaults is `Options.checked`, and of types `Client.lock`."""
    known = [(one.name, one.default) for one in inspect.signature(Options.checked).parameters.values()]
    wanted = known if api is dibs.aio else [one for one in known if one[0] != "cancel_on_lost"]
    of_lock = options(api.Client.lock)
    assert [(name, default) for name, default, _ in of_lock] == wanted
    for name in MAKERS:
        method = getattr(api.Client, name)
        for copy in (method, *get_overloads(method)):
            assert options(copy) == of_lock, f"{copy.__qualname__}{inspect.signature(copy)}"
    assert len(get_overloads(api.Client.synchronized)) == 2


def options(method: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """The parameters that are given by keyword only: names, defaults and types."""
    return [(name, default, kind) for name, how, default, kind in shape(method) if how == "KEYWORD_ONLY"]


def test_every_method_that_takes_the_options_is_compared() -> None:
    methods = {name: value for name, value in members(dibs.Client).items() if inspect.isfunction(value)}
    assert {name for name, value in methods.items() if "lease" in str(shape(value))} == set(MAKERS)


def test_in_asyncio_exactly_what_may_do_io_is_awaited() -> None:
    """And nothing in the sync API."""
    for cls, name in METHODS:
        method = members(AIO[cls])[name]
        said = str(inspect.signature(method).return_annotation)
        awaited = inspect.iscoroutinefunction(method) or said.startswith("Coroutine[")
        iterated = inspect.isasyncgenfunction(method) or said.startswith("AsyncIterator[")
        assert awaited == (name in AWAITED or name in TWINS), f"{cls}.{name}"
        assert iterated == (name in ITERATED), f"{cls}.{name}"
        sync = members(BLOCKING[cls])[name]
        assert not inspect.iscoroutinefunction(sync), f"{cls}.{name}"
        assert not inspect.isasyncgenfunction(sync), f"{cls}.{name}"
