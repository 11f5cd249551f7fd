"""Programs that fork while they hold; each reports what it saw, and waits for a line on stdin before it goes on.

forks.py SCENARIO URL LEASE
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable

from worker import outcome, say, wait_for_line  # beside this script

import dibs

# Python 3.12 and later warn of what is tried here on purpose.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)


def held(lock: dibs.Lock) -> dibs.Hold:
    hold = lock.acquire(timeout=60)
    assert hold is not None
    return hold


def state(hold: dibs.Hold, lock: dibs.Lock) -> tuple[str, ...]:
    lost = "lost" if hold.lost.is_set() else "valid"
    return (outcome(hold.check), lost, "owned" if lock.owned() else "not", str(hold.remaining > 0))


def as_child(body: Callable[[], None]) -> None:
    """Run it in a forked child and wait for that."""
    pid = os.fork()
    if pid == 0:
        body()
        sys.exit(0)  # through the interpreter's exit, with its hooks
    say("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def holds_nothing(client: dibs.Client, _: str) -> None:
    """-> child STATE, released OUTCOME, unlocked OUTCOME, other TOKEN, mine TOKEN|busy, status N, parent STATE"""
    hold = held(lock := client.lock("a"))

    def body() -> None:
        say("child", *state(hold, lock))
        say("released", outcome(hold.release))
        say("unlocked", outcome(lock.release))
        with client.lock("b", timeout=60) as other:
            say("other", other.token, *state(other, client.lock("b")))
        mine = client.lock("a").acquire(timeout=0)
        say("mine", "busy" if mine is None else mine.token)

    as_child(body)
    say("parent", *state(hold, lock))
    wait_for_line()
    say("gave", outcome(hold.release))


def leaves_with(client: dibs.Client, how: str) -> None:
    """The child goes out through the parent's `with`, by the way given -> status N, parent STATE"""
    lock = client.lock("a")
    with lock as hold:
        pid = os.fork()
        if pid == 0:
            if how == "exit":
                sys.exit(7)
            client.close()
            os._exit(0)
        say("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        say("parent", *state(hold, lock))
        wait_for_line()
    say("left")


def ends(client: dibs.Client, how: str) -> None:
    """Finalisers and exit hooks, also the user's own, run in a child though its code calls none.

    -> finalised | hook OUTCOME OUTCOME OUTCOME, status N, parent STATE, gave OUTCOME
    """
    hold = held(lock := client.lock("a"))
    pid = os.fork()
    if pid == 0:
        if how == "hook":
            atexit.register(lambda: say("hook", outcome(hold.release), outcome(lock.release), outcome(client.close)))
        else:
            ours = [thing for thing in gc.get_objects() if str(type(thing).__module__).startswith("dibs.")]
            finalisers = [thing.__del__ for thing in ours if hasattr(type(thing), "__del__")]
            for finalise in finalisers:
                finalise()
            del client, lock, hold, ours, finalisers
            gc.collect()
            say("finalised")
        sys.exit(0)
    say("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    say("parent", *state(hold, lock))
    wait_for_line()
    say("gave", outcome(hold.release))


def child_works_on(client: dibs.Client, _: str) -> None:
    """A child whose watchdog renews its own hold, beside a stopped parent -> held TOKEN, child PID, own TOKEN"""
    hold = held(lock := client.lock("a"))
    say("held", hold.token)
    pid = os.fork()
    if pid == 0:
        with client.lock("b", timeout=60) as own:
            say("child", os.getpid())
            while os.getppid() != 1:
                own.check()
                time.sleep(0.05)
            os._exit(0)
    wait_for_line()
    say("parent", *state(hold, lock))
    say("gave", outcome(hold.release))
    wait_for_line()


def leaves_child(client: dibs.Client, _: str) -> None:
    """A child lives on while the parent is killed -> held TOKEN, child PID"""
    hold = held(client.lock("a"))
    say("held", hold.token)
    if os.fork() == 0:
        with client.lock("b", timeout=60):
            say("child", os.getpid())
            wait_for_line()
            os._exit(0)
    threading.Event().wait()


def beside_threads(client: dibs.Client, rounds: str) -> None:
    """Other threads acquire in a loop all the time; each child must work -> round N OUTCOME ..., gave OUTCOME"""
    over = threading.Event()

    def busy(name: str) -> None:
        while not over.is_set():
            with client.lock(name, timeout=60):
                pass

    threads = [threading.Thread(target=busy, args=(name,)) for name in ("a", "a", "b")]
    for thread in threads:
        thread.start()
    mine = held(client.lock("mine"))
    for number in range(int(rounds)):
        pid = os.fork()
        if pid == 0:
            with client.lock("a", timeout=60) as hold:
                result, lost = outcome(hold.check), outcome(mine.check)
            os._exit(0 if (result, lost) == ("ok", "LockLost") else 1)
        say("round", number, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    over.set()
    for thread in threads:
        thread.join()
    say("gave", outcome(mine.release))


def while_logging_is_imported(client: dibs.Client, _: str) -> None:
    """Another thread is in the middle of `import logging` when this one forks; in the child dibs logs -> status N"""
    begun, forking = threading.Event(), threading.Event()

    class Slow:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "logging":
                begun.set()
                forking.wait()
                time.sleep(0.5)

    def body() -> None:
        signal.alarm(60)
        client.break_("a", token=held(client.lock("a")).token)

    held(client.lock("b"))
    os.register_at_fork(before=forking.set)
    assert "logging" not in sys.modules
    sys.meta_path.insert(0, Slow())
    threading.Thread(target=importlib.import_module, args=["logging"]).start()
    begun.wait()
    as_child(body)


if __name__ == "__main__":
    scenario, url, lease, detail = sys.argv[1:]
    globals()[scenario](dibs.connect(url, lease=float(lease)), detail)
