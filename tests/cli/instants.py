"""`dibs` to which a signal comes at one instant: instants.py INSTANT SIGNAL ARGUMENT ...

The real thing, in its own process, with one function of it that first sends the signal to this process. Once only.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from dibs.cli import child, main, run, signals, supervise

INSTANTS: dict[str, tuple[Any, str]] = {
    "forked": (child.Guard, "__init__"),  # the child waits for its order, the guard is not there yet
    "deaf": (signals.Signals, "__enter__"),  # all processes are there, no handler yet
    "asking": (run, "_wait"),
    "granted": (supervise.Supervision, "begin"),
    "ordering": (child.Child, "execute"),
    "ordered": (supervise.Supervision, "watch"),  # the command runs, nobody has looked yet
    "ended": (run, "_give_back"),
    "leaving": (child.Guard, "close"),
    "closing": (child.Child, "close"),
}


def hook(where: Any, name: str, number: int) -> None:
    original: Callable[..., Any] = getattr(where, name)

    def hooked(*args: Any) -> Any:
        setattr(where, name, original)
        os.kill(os.getpid(), number)
        return original(*args)

    setattr(where, name, hooked)


if __name__ == "__main__":
    hook(*INSTANTS[sys.argv[1]], signal.Signals[f"SIG{sys.argv[2]}"])
    sys.exit(main.main(sys.argv[3:]))
