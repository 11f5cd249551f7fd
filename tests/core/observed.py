"""A list of events for tests of observers."""

from __future__ import annotations

from dibs.events import Event


class Seen(list[Event]):
    """The events that an observer was told."""

    def whats(self, name: str | None = None) -> list[str]:
        return [event.what for event in self if name in (None, event.name)]

    def __call__(self, event: Event) -> None:
        self.append(event)

    def one(self, what: str) -> Event:
        (found,) = [event for event in self if event.what == what]
        return found
