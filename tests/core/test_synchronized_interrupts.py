"""An interrupt of a decorated call leaves nothing held: by a real signal, and at every point where one can come."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from itertools import count
from types import FrameType

import pytest

import dibs
from core.synchronizing import fresh_url
from interrupts.lines import CHECKS, Interrupt
from process.children import until

LEASE = 1.5
"""Short: what nobody wants is noticed at its next renewal; what was forgotten is renewed for ever."""
FEWEST_POINTS, MOST_POINTS = 60, 3000
"""The free path has about a hundred."""
HELD = 30.0


def stands(other: dibs.Client, name: str) -> bool:
    """A claim of the interrupted client's; somebody else's has the long lease."""
    info = other.inspect(name)
    return any(one.remaining < HELD / 2 for one in (*info.holders, *info.waiters))


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Not SIGINT, which ends the run of the tests, and not SIGALRM, which is their time-out's."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("_interruptible")
def test_a_signal_while_it_waits(url: str) -> None:
    with dibs.connect(url, lease=LEASE) as client, dibs.connect(url, lease=HELD) as other, other.lock("name"):

        @client.synchronized("name", "skip", timeout=50)
        def work() -> None:
            pytest.fail("it ran without the lock")

        def interrupt_once_it_waits() -> None:
            until(lambda: stands(other, "name"), what="it waits")
            ident = threading.main_thread().ident
            assert ident is not None
            signal.pthread_kill(ident, signal.SIGUSR1)

        thread = threading.Thread(target=interrupt_once_it_waits)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            work()
        thread.join()
        until(lambda: not stands(other, "name"), what="it has left")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_an_interrupt_at_every_point(url: str, busy: bool) -> None:
    with dibs.connect(url, lease=LEASE) as client, dibs.connect(url, lease=HELD) as other:

        @client.synchronized("n:{number}", on_busy="skip")
        def work(number: int) -> int:
            return number

        work(0)
        points: dict[str, str] = {}
        for number in count(1):
            assert number < MOST_POINTS
            name = f"n:{number}"
            hold = other.lock(name).acquire() if busy else None
            with Interrupt(number, CHECKS) as interrupt:
                assert work(number) == (None if busy else number)
            if hold is not None:
                hold.release()
            if interrupt.point is None:
                break
            points[name] = str(interrupt.point)
        assert len(points) > FEWEST_POINTS, "the tracing sees nothing"
        for name, point in points.items():
            until(lambda name=name: not stands(other, name), what=f"free after an interrupt at {point}")
