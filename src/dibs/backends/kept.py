"""What a store keeps open to its servers: the wires that its clients ask through, and the ear they hear by."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Open(Protocol):
    def close(self) -> None: ...

    def abandon(self) -> None:
        """Let go, without a word to the server, of what is another process's."""


Ear = TypeVar("Ear", bound=Open)


class Kept(Generic[Ear]):
    def __init__(self) -> None:
        self.ear: Ear | None = None
        self.wires: list[Open] = []

    def close(self) -> None:
        ear, self.ear = self.ear, None
        if ear is not None:
            ear.close()
        for wire in self.wires:
            wire.close()
        self.wires.clear()

    def abandon(self) -> None:
        """In a forked child, which begins anew."""
        if self.ear is not None:
            self.ear.abandon()
        for wire in self.wires:
            wire.abandon()
