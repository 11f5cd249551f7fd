"""Every public name has a docstring that names its parameters, and both APIs say the same."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import dibs
import dibs.aio
import dibs.aio.sql
import dibs.otel
import dibs.prometheus
import dibs.sql
from architecture.test_apis import AIO, BLOCKING, TWINS, members, public
from dibs.info import Seen
from dibs.testing.faults import LostReply
from dibs.testing.fixtures import dibs_aio_client, dibs_client
from dibs.testing.kit import KitAioClient, KitClient
from dibs.testing.overlap import Holder, Overlap
from dibs.testing.stage import Clock, Pause

KIT = (KitClient, KitAioClient, Clock, Pause, LostReply, Overlap, Holder)
INTERNAL = frozenset({"DibsError.about", "Clock.after_fork", "Clock.is_stopped", "Pause.covers"})
"""Ours to call."""
SECTIONS = frozenset({"Args", "Attributes", "Example", "Note", "Raises", "Returns"})
OF_ONE_API = frozenset({"Example", "Note"})
"""Sections that differ: a note is about threads, or about tasks."""
EXAMPLES = ("Client", "Client.lock", "Lock", "Semaphore", "Hold", "Election", "Latch")
"""Both APIs must show an example of these."""
CANCELLED = ("Lock.acquire", "Lock.release", "Semaphore.acquire", "Multi.acquire", "Multi.release", "Hold.release")


def modules() -> Iterator[tuple[str, Any]]:
    for module in (dibs, dibs.aio, dibs.sql, dibs.aio.sql, dibs.otel, dibs.prometheus):
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)


def listed() -> dict[str, Any]:
    """Everything public that can have a docstring, by its name."""
    found: dict[str, Any] = {}
    for path, value in [*modules(), *((f"dibs.testing.{cls.__name__}", cls) for cls in KIT)]:
        found[path] = value
        if not inspect.isclass(value):
            continue
        for name in dir(value):
            member = inspect.getattr_static(value, name)
            own = getattr(getattr(member, "fget", member), "__module__", "")
            qualified = getattr(member, "__qualname__", f"{value.__name__}.{name}")
            if not name.startswith("_") and str(own).startswith("dibs") and qualified not in INTERNAL:
                found[f"{path}.{name}"] = member
    return found


NAMES = listed()


def text_of(value: object) -> str:
    """Its own: what a class inherits is not said of it."""
    own = value.__doc__ if not inspect.isclass(value) else vars(value).get("__doc__")
    return inspect.cleandoc(own or "")


def sections(text: str) -> dict[str, str]:
    """The parts of a text in Google's style, by heading; the first has none."""
    parts = re.split(r"(?m)^([A-Z]\w+):\n(?=    )", text)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def entries(section: str) -> list[str]:
    """The names that a section describes; one entry may describe several."""
    lines = [line for line in section.splitlines() if re.match(r" {4}\w", line)]
    return [name for line in lines for name in line.partition(":")[0].strip().split(", ")]


def wrong_text(value: object) -> str | None:
    """The first fault of a docstring, or None."""
    text = text_of(value)
    lines = text.splitlines()
    if not text:
        return "no docstring"
    if not lines[0].endswith((".", ":")) or (len(lines) > 1 and lines[1]):
        return "the first line is no sentence that stands alone"
    parts = sections(text)
    if isinstance(value, property) and ":" in lines[0]:
        return "Sphinx takes what stands before a colon for the type of a property"
    if ":" in parts.get("Returns", "").partition("\n")[0]:
        return "Sphinx takes what stands before a colon for the type of the result"
    if unknown := parts.keys() - {"", *SECTIONS}:
        return f"no section is called {unknown}"
    if inspect.isfunction(value):
        named = entries(parts.get("Args", ""))
        parameters = [name for name in inspect.signature(value).parameters if name != "self"]
        if named != parameters:
            return f"its parameters are {parameters}, and it describes {named}"
    errors = {*dibs.__all__, "TypeError", "ValueError"}
    if odd := set(entries(parts.get("Raises", ""))) - errors:
        return f"it raises {odd}"
    return None


def test_every_public_name_has_a_docstring_with_its_parameters() -> None:
    assert len(NAMES) > 150
    wrong = {path: what for path, value in NAMES.items() if (what := wrong_text(value)) is not None}
    assert not wrong, "\n".join(f"{path}: {what}" for path, what in wrong.items())
    assert dibs_client.__doc__
    assert dibs_aio_client.__doc__


@pytest.mark.parametrize("cls", [dibs.LockInfo, dibs.Participant, dibs.Finding, Overlap, Holder, LostReply])
def test_a_docstring_names_every_field(cls: Any) -> None:
    if issubclass(cls, Seen) or cls is dibs.Finding:
        fields = list(cls._fields)
    else:
        fields = list(getattr(cls, "__dataclass_fields__", None) or inspect.signature(cls).parameters)
        fields += ["verb"] if cls is LostReply else []
    assert entries(sections(text_of(cls))["Attributes"]) == fields


def as_sync(text: str) -> str:
    """A text of the async API as the sync API has it."""
    plain = re.sub(r"\basync (with|for)\b", r"\1", text).replace("dibs.aio.", "dibs.")
    plain = re.sub(r"\n +cancel_on_lost:.*(?:\n {8}.*)*", "", plain).replace(", cancel_on_lost:", ":")
    return " ".join(plain.replace("an `with`", "a `with`").split())


def said(value: object) -> str:
    """The part of a docstring that both APIs share, in the words of the sync API."""
    parts = sections(text_of(value)).items()
    return as_sync("\n".join(f"{name} {part}" for name, part in parts if name not in OF_ONE_API))


def test_both_apis_show_how() -> None:
    for name in (f"{api}.{name}" for api in ("dibs", "dibs.aio") for name in EXAMPLES):
        assert ">>> " in sections(text_of(NAMES[name])).get("Example", ""), name


def test_the_async_api_says_what_cancellation_does() -> None:
    for name in CANCELLED:
        assert "cancelled" in sections(text_of(NAMES[f"dibs.aio.{name}"])).get("Note", ""), name


def test_no_text_speaks_of_the_other_api_alone() -> None:
    assert "sync API" not in text_of(dibs.Client)
    assert "sync API" not in text_of(dibs.aio.Client)
    assert "threads" not in text_of(dibs.aio.Client).lower()


def test_help_shows_no_object_of_ours() -> None:
    for cls in (dibs.Lock, dibs.aio.Lock):
        assert "object at 0x" not in pydoc.render_doc(cls, renderer=pydoc.plaintext)
        assert "dibs.bases.WrongWith" not in pydoc.render_doc(cls, renderer=pydoc.plaintext)


@pytest.mark.parametrize("name", sorted(AIO))
def test_both_apis_say_the_same(name: str) -> None:
    assert said(BLOCKING[name]) == said(AIO[name])
    there = members(AIO[name])
    for key, value in members(BLOCKING[name]).items():
        if key not in TWINS:
            assert said(value) == said(there[key]), f"{name}.{key}"


@pytest.mark.parametrize(("one", "other"), [(dibs, dibs.aio), (dibs.sql, dibs.aio.sql)])
def test_functions_of_both_apis_say_the_same(one: ModuleType, other: ModuleType) -> None:
    names = [name for name in public(other) if inspect.isfunction(getattr(other, name))]
    assert len(names) == 2
    for name in names:
        assert said(getattr(one, name)) == said(getattr(other, name)), name
