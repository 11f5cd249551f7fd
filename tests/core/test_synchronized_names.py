"""`synchronized`: the name from the call, and what is refused while decorating, before anything is asked of a store."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dibs
import dibs.aio
from core.synchronizing import Api, fresh_url


@pytest.fixture(params=["blocking", "aio"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    found = Api(request.param, fresh_url())
    yield found
    found.end()


class Invoice:
    id = 42


def names_held(client: dibs.Client) -> list[str]:
    return [info.name for info in client.locks()]


# The name


def no_parameters() -> dict[str, Any]:
    return locals()


def common(a: Any, b: Any = "b", *args: Any, c: Any, d: Any = "d", **kwargs: Any) -> dict[str, Any]:
    return locals()


def by_position(a: Any, b: Any = "b", /, c: Any = "c", **kwargs: Any) -> dict[str, Any]:
    return locals()


def by_keyword(*, a: Any, b: Any = "b") -> dict[str, Any]:
    return locals()


def all_of_them(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return locals()


def as_partial(x: Any, a: Any, b: Any, c: Any = "c") -> dict[str, Any]:
    return locals()


FUNCTIONS: list[Callable[..., dict[str, Any]]] = [
    no_parameters, common, by_position, by_keyword, all_of_them, functools.partial(as_partial, "x", b="bound"),
]  # fmt: skip
VALUES = st.text("uvw", max_size=2)
CALLS = st.tuples(st.lists(VALUES, max_size=4), st.dictionaries(st.sampled_from("abcdxyz"), VALUES, max_size=4))


@given(st.sampled_from(FUNCTIONS), CALLS)
def test_a_field_is_what_the_call_gives_to_the_parameter(
    function: Callable[..., dict[str, Any]], call: tuple[list[str], dict[str, str]]
) -> None:
    """As Python itself has it, for every kind of parameter; and a call that does not fit is Python's own error."""
    args, kwargs = call
    template = "n:" + "".join(f"{{{name}}}" for name in inspect.signature(function).parameters)
    held: list[str] = []
    client = dibs.connect("memory://synchronized-fields")

    def body(*args: Any, **kwargs: Any) -> dict[str, Any]:
        held.extend(names_held(client))
        return function(*args, **kwargs)

    body.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    body = client.synchronized(template, timeout=0)(body)
    with client:
        try:
            bound = function(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError):
                body(*args, **kwargs)
            assert names_held(client) == []
        else:
            assert body(*args, **kwargs) == bound
            assert held == [template.format(**bound)]


TEMPLATES = {
    "constant": "constant",
    "{{braces}}": "{braces}",
    "invoice:{invoice.id}": "invoice:42",
    "{invoice.id:05d}": "00042",
    "{invoice.id!r:>{width}}": "  42",
    "{options[by]}:{rest[0]}": "card:1",
    "{invoice.id}:{invoice.id}:{width}": "42:42:4",
    "{invoice.__class__.__name__}": "Invoice",
    "{rest!s}": "(1,)",
}


def test_templates(api: Api) -> None:
    async def pay(invoice: Invoice, width: int = 4, *rest: int, **options: str) -> list[str]:
        return names_held(api.other)

    for template, name in TEMPLATES.items():
        paying = api.client.synchronized(template)(api.function(pay))
        assert api.call(paying, Invoice(), 4, 1, by="card") == [name]


def test_a_missing_argument_is_pythons_own_error_and_nothing_is_taken(api: Api) -> None:
    ran: list[bool] = []

    @api.client.synchronized("invoice:{invoice.id}")
    @api.function
    async def pay(amount: int, invoice: Invoice) -> None:
        ran.append(True)

    with (
        api.other.lock("invoice:42"),  # it would wait for ever
        pytest.raises(TypeError, match=r"pay\(\) missing a required argument: 'invoice'"),
    ):
        api.call(pay, 5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        api.call(pay, 5, Invoice(), colour="red")
    assert not ran
    assert names_held(api.other) == []


def test_what_another_decorator_made_tells_its_own_parameters(api: Api) -> None:
    """`inspect.signature` believes `__wrapped__`: with one argument more or less another name would be taken."""

    async def inner(db: str, number: int, amount: int) -> None: ...

    async def outer(number: int) -> None: ...

    async def any_outer(*args: Any, **kwargs: Any) -> None: ...

    said = r"has no parameter 'amount', it has .*; put @client.synchronized\(...\) below"
    for takes in (outer, any_outer):
        with pytest.raises(ValueError, match=said):
            api.client.synchronized("invoice:{amount}")(functools.wraps(inner)(api.function(takes)))


BAD_VALUES = [
    ("a\nb", "control character"),
    ("x" * 600, "is 602 bytes long"),
    ("\ud800", "lone surrogate"),
    (object(), "contains the address of an object.*Next: name an attribute"),
    (len.__call__, "contains the address of an object"),
    (fresh_url.__code__, "contains the address of an object"),
]


def test_a_bad_name_is_refused_at_the_call_before_any_io(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "never.db"
    client = api.connect(f"sqlite:///{path}")

    @client.synchronized("n:{value}", on_busy="skip")
    @api.function
    async def work(value: object) -> None:
        pytest.fail("it has no name")

    for value, said in BAD_VALUES:
        with pytest.raises(dibs.BadName, match=said) as caught:
            api.call(work, value)
        assert '"n:{value}"' in caught.value.__notes__[0]
        assert "work" in caught.value.__notes__[0]
    api.close(client)
    assert not path.exists()


def test_a_field_that_fails_at_the_call_surfaces_with_a_note(api: Api) -> None:
    @api.client.synchronized("invoice:{invoice.number}")
    @api.function
    async def pay(invoice: Invoice) -> None:
        pytest.fail("it has no name")

    with pytest.raises(AttributeError, match="number") as caught:
        api.call(pay, Invoice())
    (note,) = caught.value.__notes__
    assert "invoice:{invoice.number}" in note
    assert pay.__qualname__ in note


# What is refused while decorating


async def a_coroutine_function(number: int) -> int:
    return number


def a_function(number: int) -> int:
    return number


def generator(number: int) -> Iterator[int]:
    yield number


async def asyncgen(number: int) -> AsyncIterator[int]:
    yield number


class Generating:
    def __call__(self) -> Iterator[int]:
        yield 1


class Calling:
    def __call__(self, number: int) -> int:
        return number


class Awaiting:
    async def __call__(self, number: int) -> int:
        return number


REFUSED_NAMES: list[tuple[object, dict[str, Any], type[Exception], str]] = [
    (a_function, {}, TypeError, r'needs a name: write @client.synchronized\("name"\) above .*a_function'),
    (42, {}, dibs.BadName, "a name must be a str, not int"),
    ("", {}, dibs.BadName, "the name is empty"),
    ("a\nb", {}, dibs.BadName, "control character"),
    ("a\n{number}", {}, dibs.BadName, "control character"),
    ("n", {"on_busy": "fail"}, ValueError, '"wait", "skip" or "raise", not \'fail'),
    ("n", {"on_busy": None}, ValueError, '"wait", "skip" or "raise", not None'),
    ("n", {"timeout": -1}, ValueError, "timeout"),
    ("n", {"timeout": True, "on_busy": "skip"}, TypeError, "timeout"),
    ("n", {"lease": 0.1}, ValueError, "lease"),
    ("n", {"patience": 5}, TypeError, "patience"),
    ("n:{}", {}, ValueError, r'n:\{\}" is not a template: .*positional'),
    ("n:{0}", {}, ValueError, r'n:\{0\}" is not a template: .*positional'),
    ("{number:>{0}}", {}, ValueError, "is not a template: .*positional"),
    ("n:{number", {}, ValueError, "is not a template: .*a brace is written twice"),
    ("n:}", {}, ValueError, "is not a template: Single '}'"),
    ("{number.}", {}, ValueError, "is not a template: Empty attribute"),
    ("{number!x}", {}, ValueError, "is not a template: Unknown conversion"),
]
"""Names and options that no function can be decorated with."""


def refused_functions(api: Api) -> list[tuple[str, Any, type[Exception], str]]:
    """Templates, what they are to decorate, and what is said instead."""
    fitting = a_coroutine_function if api.is_aio else a_function
    asks = r"generator function: .*before its body runs. Take the lock inside it"
    cases: list[tuple[str, Any, type[Exception], str]] = [
        ("n:{a.id}", fitting, ValueError, "n:{a.id}\": .*function has no parameter 'a', it has number"),
        ("n:{number:>{width}}", fitting, ValueError, "no parameter 'width'"),
        ("n", generator, TypeError, f"generator is a {asks}"),
        ("n", asyncgen, TypeError, f"asyncgen is a {asks}"),
        ("n", Generating(), TypeError, "is a generator function"),
        ("n", functools.partial(generator, 1), TypeError, "is a generator function"),
        ("n", contextmanager(generator), TypeError, "makes context managers"),
        ("n", asynccontextmanager(asyncgen), TypeError, "makes context managers"),
        ("n", Invoice, TypeError, "Invoice is a class: .*above those of its methods"),
        ("n", staticmethod(fitting), TypeError, "a staticmethod: .*below it"),
        ("n", classmethod(fitting), TypeError, "a classmethod: .*below it"),
        ("n", property(fitting), TypeError, "a property: .*below it"),
        ("n", functools.cached_property(fitting), TypeError, "a cached_property: .*below it"),
        ("n", None, TypeError, "goes around a function, not a NoneType"),
    ]
    if api.is_aio:
        said = r"a_function is not a coroutine function.*async def, or use the client of dibs\.connect\(\)"
        cases += [("n", a_function, TypeError, said), ("n", Calling(), TypeError, "is not a coroutine function")]
    else:
        said = r"a_coroutine_function is a coroutine function: .*Use the client of dibs\.aio\.connect\(\)"
        cases += [
            ("n", a_coroutine_function, TypeError, said),
            ("n", Awaiting(), TypeError, "is a coroutine function"),
            ("n:{number}", dict.update, ValueError, "dict.update does not tell its parameters"),
        ]
    return cases


def test_it_is_refused_while_decorating_without_io(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "never.db"
    client = api.connect(f"sqlite:///{path}")
    own = (1, "cancel_on_lost") if api.is_aio else (True, "unexpected keyword argument")
    for name, options, kind, said in [*REFUSED_NAMES, ("n", {"cancel_on_lost": own[0]}, TypeError, own[1])]:
        with pytest.raises(kind, match=said):
            client.synchronized(name, **options)
    for name, function, kind, said in refused_functions(api):
        with pytest.raises(kind, match=said):
            client.synchronized(name)(function)
    api.close(client)
    assert not path.exists()


def test_what_the_store_cannot_do_is_said_while_decorating(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.client.synchronized("n:{number}", fair=True)
    monkeypatch.setattr(api.client._core.store, "capabilities", frozenset())
    with pytest.raises(dibs.Unsupported, match="fair=True"):
        api.client.synchronized("n:{number}", fair=True)
