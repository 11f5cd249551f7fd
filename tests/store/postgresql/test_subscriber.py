"""Only bytes from the server prove that the connection for messages is alive."""

from __future__ import annotations

from threading import Thread
from typing import Any

import dibs
from dibs.runtime.threads import step
from process.children import until


def test_a_look_that_finds_nothing_is_no_sign_of_life(url: str) -> None:
    with dibs.connect(url, lease=60) as client:
        waiter = Thread(target=lambda: client.lock("a").acquire().release())  # type: ignore[union-attr]
        with client.lock("a"):
            waiter.start()
            until(lambda: client.inspect("a").waiters)
            messages: Any = client._core.store._resources.subscriber  # type: ignore[attr-defined]
            connection = until(lambda: messages.hears() and messages.source.connection)
            assert not messages.read(connection, [])
            before = messages.source._heard_at
            with messages.source.mutex:
                messages.ping(connection)
            until(lambda: messages.source._heard_at > before, what="the waiter has read the reply")
        waiter.join()


def test_an_attempt_to_connect_proves_no_messages(url: str) -> None:
    """The thread may tell of it only after the caller has seen the connection."""
    with dibs.connect(url, lease=60) as client:
        with client.lock("a"):
            pass
        messages: Any = client._core.store._resources.subscriber  # type: ignore[attr-defined]
        until(lambda: messages.begin() or messages.source.connection)
        messages.proven = None

        async def send(_: str, letter: str) -> None:
            messages._inbox.deliver(bytes.fromhex(letter[:-1]), b"tried")

        assert not step(messages.ready(send, messages._now() + 60))
