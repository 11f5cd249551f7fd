"""A program under a storm of real signals; test_storm.py runs it and reads the JSON that it prints.

The main thread loops over `with`; a timer signal whose handler raises KeyboardInterrupt ends each loop at a random
instant. Afterwards nothing may be held.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import dibs

PATIENCE = 110
"""Seconds after which it shows where every thread stands, and ends."""
FREED = 30
"""Seconds in which the watchdog gives back what an interrupt left: what was forgotten is renewed for ever."""
AGAIN = 0.05
"""An interrupt that was swallowed, in a destructor, comes again so much later. None comes twice."""
PACKAGE = str(Path(dibs.__file__).parent)


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def span_of(make: Callable[[], AbstractContextManager[Any]]) -> float:
    """Signals come within some rounds of the loop, and never sooner than a timer can."""
    began = time.perf_counter()
    for _ in range(50):
        with make():
            pass
    return max((time.perf_counter() - began) / 50 * 8, 0.0002)


def one_interrupt(make: Callable[[], AbstractContextManager[Any]], delay: float) -> str:
    """Loop until the signal comes, which it does once; gives the innermost place of dibs that it hit."""
    body = 0
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        while True:
            with make():
                body += 1
    except KeyboardInterrupt as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [f for f in frames if f.filename.startswith(PACKAGE)]
        if not inside:
            return "outside dibs"
        return " > ".join(f"{f.filename[len(PACKAGE) + 1 :]}:{f.lineno} {f.name}" for f in (inside[0], inside[-1]))


def storm_on_dibs(url: str, count: int, lease: float, rng: random.Random) -> dict[str, Any]:
    client, other = dibs.connect(url, lease=lease), dibs.connect(url, lease=lease)
    with client.lock("warm-up"):
        other.inspect("warm-up")
    span = span_of(lambda: client.lock("warm-up"))
    suspects: list[tuple[str, str]] = []
    for n in range(count):
        name = f"storm-{n}"
        where = one_interrupt(lambda name=name: client.lock(name), rng.uniform(0, span))
        if other.inspect(name).holders:
            suspects.append((name, where))
    end = time.monotonic() + FREED
    forgotten = [(name, where) for name, where in suspects if not freed(other, name, end)]
    known = {name for name, _ in forgotten}
    names = [f"storm-{n}" for n in range(count)]
    return {
        "interrupts": count,
        "busy at first": len(suspects),
        "forgotten": Counter(where for _, where in forgotten).most_common(),
        "watchdog lives": renews(client),
        "left in the store": [name for name in names if name not in known and _stands(other, name)],
    }


def renews(client: dibs.Client) -> bool:
    """A hold that a standing machine lost is taken anew."""
    end = time.monotonic() + FREED
    while time.monotonic() < end:
        hold = client.lock("keep").acquire(timeout=FREED)
        before = hold.remaining if hold else 0.0
        while hold and not hold.lost.wait(0.01):
            if hold.remaining > before:
                return True
            before = hold.remaining
    return False


def freed(other: dibs.Client, name: str, until: float) -> bool:
    """A look before the time is over, and one after."""
    while True:
        late = time.monotonic() >= until
        if not other.inspect(name).holders:
            return True
        if late:
            return False
        time.sleep(0.002)


def _stands(other: dibs.Client, name: str) -> bool:
    info = other.inspect(name)
    return bool(info.holders or info.waiters)


def main(url: str, count: int, lease: float, seed: int) -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    signal.signal(signal.SIGALRM, interrupt)
    warned: Counter[str] = Counter()
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *rest, **more: warned.update([str(message)])
    swallowed: Counter[str] = Counter()

    def come_again(unraisable: Any) -> None:
        swallowed.update([repr(unraisable.exc_value)])
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)

    sys.unraisablehook = come_again
    told = storm_on_dibs(url, count, lease, random.Random(seed))
    gc.collect()
    told["warnings"] = warned.most_common(5)
    told["swallowed"] = swallowed.most_common(5)
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
