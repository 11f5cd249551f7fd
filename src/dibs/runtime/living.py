"""A set of weak references that is safe to iterate while other threads add to it.

Iterating over a `WeakSet` fails when another thread adds to it. Here every step is a single operation in C.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class Living(Generic[T]):
    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[ref[T], None] = {}

    def add(self, one: T) -> None:
        known = self._known
        known[ref(one, lambda gone: known.pop(gone, None))] = None

    def discard(self, one: T) -> None:
        self._known.pop(ref(one), None)

    def now(self) -> list[T]:
        return [one for reference in list(self._known) if (one := reference()) is not None]
