"""`client.synchronized`: a function that runs only while it holds a lock. The part that both APIs share.

A `Plan` has the arguments of `synchronized`; `Plan.locks` returns a function that makes the lock of one call. Mistakes
are reported while decorating: the plan checks the template and the options, `Plan.locks` the function and the fields. A
call then only looks up the arguments of the name, by position, and makes a lock; each API enters it by its own `with`.

Not handled: a plain function that returns a coroutine or generator. The lock covers the call, not what follows.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, Literal, TypeVar, get_args

from dibs.core import names
from dibs.core.client import Client
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.options import Options
from dibs.core.log import fields, log
from dibs.errors import AcquireTimeout, BadName

OnBusy = Literal["wait", "skip", "raise"]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
L = TypeVar("L")

_MISSING = inspect.Parameter.empty
_BEYOND = sys.maxsize
"""The position of a keyword-only parameter."""
_ADDRESS = re.compile(r"<.* at 0x[0-9a-fA-F]+")


class Plan(Generic[L]):
    """The arguments of `synchronized`, checked as far as possible without the function."""

    def __init__(
        self, client: Client, api: Callable[[kinds.Lock], L], template: object, on_busy: object, options: Options
    ) -> None:
        if callable(template):
            raise TypeError(f'synchronized needs a name: write @client.synchronized("name") above {label(template)}')
        if on_busy not in get_args(OnBusy):
            raise ValueError(f'on_busy must be "wait", "skip" or "raise", not {on_busy!r}')
        self.skips = on_busy == "skip"
        self._client = client
        self._api = api
        once = on_busy != "wait" and options.timeout is None
        self._options = options._replace(timeout=0.0) if once else options
        self._template = template if isinstance(template, str) else names.check(template)
        sample, self._fields = fields_of(self._template)
        self._lock(sample)  # raises now if the store or API cannot do this, or the name is bad

    def locks(self, function: Callable[..., object], *, awaited: bool) -> Callable[[Args, Kwargs], L]:
        """A function that makes the lock of one call."""
        refuse(function, awaited=awaited)
        if not self._fields:
            name = self._template.format()
            return lambda *_: self._lock(name)
        signature = _signature(function, self._template)
        if unknown := [field for field in self._fields if field not in signature.parameters]:
            wrapper = "; put @client.synchronized(...) below the other decorator" if _is_wrapper(function) else ""
            raise ValueError(
                f'"{self._template}": {label(function)} has no parameter {unknown[0]!r}, '
                f"it has {', '.join(signature.parameters) or 'none'}{wrapper}"
            )
        finders = [(field, _finder(signature, field)) for field in self._fields]

        def lock(args: Args, kwargs: Kwargs) -> L:
            values = {}
            for field, find in finders:
                values[field] = value = find(args, kwargs)
                if value is _MISSING:
                    raise _mismatch(function, signature, args, kwargs)
            try:
                return self._lock(_shared(self._template.format_map(values)))
            except Exception as error:
                error.add_note(f'in the name "{self._template}" that {label(function)} is synchronized by')
                raise

        return lock

    def _lock(self, name: str) -> L:
        return self._api(kinds.mutex(self._client, name, self._options, share=False))


def skipped(function: Callable[..., object], busy: AcquireTimeout) -> None:
    extra = fields("skipped", lock=busy.name, store=busy.store)
    log("lock").info("skipped %s: %s", label(function), busy, extra=extra)


def sign(call: object, function: Callable[..., object]) -> None:
    """Copy the signature, so that another `synchronized` can decorate the result."""
    with suppress(TypeError, ValueError):  # some functions in C have none
        call.__signature__ = inspect.signature(function, follow_wrapped=False)  # type: ignore[attr-defined]


def label(function: object) -> str:
    """The name of a function in errors and the log."""
    parts = [getattr(function, part, None) for part in ("__module__", "__qualname__")]
    return repr(function) if parts[1] is None else ".".join(part for part in parts if part)


def fields_of(template: str) -> tuple[str, list[str]]:
    """A sample name from the template, and its parameters; parsed by `str.format` itself.

    >>> fields_of("invoice:{invoice.id:>{width}}")
    ('invoice:1', ['invoice', 'width'])
    """
    asked = _Asked()
    try:
        sample = template.format_map(asked)
    except ValueError as error:
        raise ValueError(
            f'"{template}" is not a template: {error}. Name parameters, like {{invoice.id}}; a brace is written twice'
        ) from None
    return sample, list(asked)


class _Asked(dict[str, object]):
    """Remembers the keys that were looked up."""

    def __missing__(self, field: str) -> object:
        return self.setdefault(field, _Anything())


class _Anything:
    """Has every attribute and item, and formats as "1", which is also a valid width."""

    def __getattribute__(self, name: str) -> object:
        return self

    def __getitem__(self, key: object) -> object:
        return self

    def __repr__(self) -> str:
        return "1"

    def __format__(self, spec: str) -> str:
        return "1"


def refuse(function: object, *, awaited: bool) -> None:
    """Raise for a function that would not run under the lock, or belongs to the other API."""
    if isinstance(function, staticmethod | classmethod | property) or not callable(function):
        kind = type(function).__name__
        raise TypeError(f"synchronized goes around a function, not a {kind}: put @client.synchronized(...) below it")
    what = label(function)
    if inspect.isclass(function):
        raise TypeError(f"{what} is a class: put @client.synchronized(...) above those of its methods that need it")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise TypeError(
            f"{what} is a generator function: the lock would be released before its body runs. "
            "Take the lock inside it, with client.lock(...)"
        )
    if _makes_context_managers(function):
        raise TypeError(
            f"{what} makes context managers: the lock would be released before their block runs. "
            "Take the lock inside it, with client.lock(...)"
        )
    if _is(inspect.iscoroutinefunction, function) is awaited:
        return
    if awaited:
        raise TypeError(
            f"{what} is not a coroutine function, and this client is of the async API: write async def, "
            "or use the client of dibs.connect()"
        )
    raise TypeError(
        f"{what} is a coroutine function: the lock would be released before its body runs. "
        "Use the client of dibs.aio.connect()"
    )


def _is(test: Callable[[object], bool], function: Callable[..., object]) -> bool:
    """Also for callable objects."""
    return test(function) or test(type(function).__call__)


def _makes_context_managers(function: Callable[..., object]) -> bool:
    """Whether contextlib's decorators made it from a generator function; other decorators may make it a plain one."""
    inner = getattr(function, "__wrapped__", None)
    made_there = getattr(function, "__globals__", None) is vars(contextlib)
    return made_there and (inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner))


def _signature(function: Callable[..., object], template: str) -> inspect.Signature:
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f'"{template}" has fields, and {label(function)} does not tell its parameters') from error


def _is_wrapper(function: object) -> bool:
    return hasattr(function, "__wrapped__")


def _finder(signature: inspect.Signature, field: str) -> Callable[[Args, Kwargs], Any]:
    """A function that finds that parameter in a call, ten times as fast as `Signature.bind`."""
    parameter, at = signature.parameters[field], list(signature.parameters).index(field)
    default = parameter.default
    if parameter.kind is parameter.VAR_POSITIONAL:
        return lambda args, _: args[at:]
    if parameter.kind is parameter.VAR_KEYWORD:
        by_keyword = (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        named = {one.name for one in signature.parameters.values() if one.kind in by_keyword}
        return lambda _, kwargs: {name: value for name, value in kwargs.items() if name not in named}
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return lambda args, _: args[at] if at < len(args) else default
    first = _BEYOND if parameter.kind is parameter.KEYWORD_ONLY else at
    return lambda args, kwargs: args[first] if first < len(args) else kwargs.get(field, default)


def _mismatch(function: object, signature: inspect.Signature, args: Args, kwargs: Kwargs) -> TypeError:
    """The error that Python would raise for such a call; the function must never run without the lock."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return TypeError(f"{label(function)}() {error}")
    # Python 3.13.0 takes the name of a positional-only parameter among **kwargs for that parameter.
    return TypeError(f"{label(function)}() missing a required argument")


def _shared(name: str) -> str:
    """Refuse the address of an object without `__str__`: no other process would use the same name."""
    if _ADDRESS.search(name):
        raise BadName(
            f"the name {name!a} contains the address of an object", step="name an attribute, like {invoice.id}"
        )
    return name
