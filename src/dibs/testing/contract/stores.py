"""The stores that the suite tests: those of `--dibs-store`, else the two that need no server.

A store is given by a function `fresh(tmp_path) -> url` that returns the URL of another empty store at each call. It is
also called once while tests are collected, to read the store's capabilities; that opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import dibs

Fresh = Callable[[Path], str]
_numbers = count(1)


def _memory(_: Path) -> str:
    return f"memory://contract-{next(_numbers)}"


def _sqlite(place: Path) -> str:
    return f"sqlite:///{place / 'locks.db'}"


WHOLE, STORE, VERBS, LOCK = "whole", "store", "verbs", "lock"
PARTS = (WHOLE, STORE, VERBS, LOCK)
"""Parts of the suite: everything; what depends on the store; the operations of a store; plain locks."""
SERVERLESS: dict[str, Fresh] = {"memory": _memory, "sqlite": _sqlite}


@dataclass(eq=False)
class Subject:
    """A store under test."""

    name: str
    fresh: Fresh
    wish: str = ""
    """The value of `--dibs-store`."""
    part: str = WHOLE
    form: str = ""
    """How a FOREIGN store keeps the locks of a seat: one of `seats.FORMS`."""

    @cached_property
    def is_memory(self) -> bool:
        """Whether it is the memory store of dibs."""
        return self.fresh is _memory

    @property
    def has_server(self) -> bool:
        return self.fresh not in SERVERLESS.values()

    @cached_property
    def capabilities(self) -> frozenset[str]:
        with TemporaryDirectory(prefix="dibs-") as place, dibs.connect(self.fresh(Path(place))) as client:
            return client._core.store.capabilities


_CHOSEN = pytest.StashKey[dict[str, Subject]]()


def chosen(config: pytest.Config) -> dict[str, Subject]:
    """The stores of this run, by name."""
    if _CHOSEN not in config.stash:
        wishes: list[str] = config.getoption("dibs_store")
        subjects = [_subject(wish) for wish in wishes or SERVERLESS]
        names = [subject.name for subject in subjects]
        if len(set(names)) < len(names):
            raise pytest.UsageError(
                f"--dibs-store: two stores are called alike ({', '.join(names)}); say NAME=MODULE:FUNCTION"
            )
        config.stash[_CHOSEN] = {subject.name: subject for subject in subjects}
        for wish in config.getoption("dibs_part"):
            _choose_part(config.stash[_CHOSEN], wish)
    return config.stash[_CHOSEN]


def _choose_part(subjects: dict[str, Subject], wish: str) -> None:
    name, _, part = wish.rpartition("=")
    named = [subjects[name]] if name in subjects else [] if name else list(subjects.values())
    if part not in PARTS or not named:
        raise pytest.UsageError(
            f"--dibs-part {wish}: say [NAME=]PART, with the name of a store ({', '.join(subjects)}) and one of "
            f"{', '.join(PARTS)}"
        )
    for subject in named:
        subject.part = part


def _subject(wish: str) -> Subject:
    name, _, target = wish.rpartition("=")
    if target in SERVERLESS:
        return Subject(name or target, SERVERLESS[target], wish)
    module, _, function = target.partition(":")
    if not module or not function:
        raise pytest.UsageError(
            f"--dibs-store {wish}: not a store; say [NAME=]MODULE:FUNCTION, or one of {', '.join(SERVERLESS)}"
        )
    try:
        fresh: Fresh = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"--dibs-store {wish}: {error}") from error
    return Subject(name or module.partition(".")[0], fresh, wish)
