"""`synchronized` in both faces: the body runs under the lock, and what happens when that is busy, lost or cancelled."""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial, wraps
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import dibs
import dibs.aio
from core.synchronizing import Face, fresh_url
from process.children import PATIENCE


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    found = Face(request.param, fresh_url())
    yield found
    found.end()


def test_the_body_runs_under_the_lock(face: Face) -> None:
    async def pay(number: int, *, twice: bool = False) -> tuple[int, bool, list[str]]:
        return number, twice, [holder.owner for holder in face.other.inspect(f"invoice:{number}").holders]

    paying = face.client.synchronized("invoice:{number}", owner="ana")(face.function(pay))
    assert face.call(paying, 42, twice=True) == (42, True, ["ana"])
    assert face.other.inspect("invoice:42").holders == ()


def test_one_at_a_time(face: Face) -> None:
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await face.pause()
        inside -= 1

    one_at_a_time = face.client.synchronized("one", timeout=PATIENCE)(face.function(work))
    face.together(*[one_at_a_time] * 8)
    assert most == 1


def test_it_waits_by_default(face: Face) -> None:
    ran = []

    async def work() -> int:
        ran.append(True)
        return 7

    waiting = face.client.synchronized("name")(face.function(work))
    with face.let_go_once_waited_for("name"):
        assert face.call(waiting) == 7
    assert ran


def test_busy_is_an_error_that_says_who(face: Face) -> None:
    async def work() -> None:
        pytest.fail("it ran without the lock")

    for options in ({"timeout": 0.05}, {"on_busy": "raise"}, {"on_busy": "raise", "timeout": 0.05}):
        trying = face.client.synchronized("name", **options)(face.function(work))
        with face.other.lock("name", owner="bob"), pytest.raises(dibs.Busy, match=r'"name" on .*held by bob') as caught:
            face.call(trying)
        assert isinstance(caught.value, TimeoutError)


def test_a_skipped_call_gives_none_and_is_in_the_log(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    ran = []

    async def nightly_report() -> int:
        ran.append(True)
        return 7

    skipping = face.client.synchronized("report", on_busy="skip")(face.function(nightly_report))
    with caplog.at_level(logging.INFO, "dibs"), face.other.lock("report", owner="bob"):
        assert face.call(skipping) is None
    assert not ran
    (record,) = [record for record in caplog.records if record.name == "dibs"]
    assert record.levelno == logging.INFO
    for part in ("skipped", "nightly_report", '"report" on', "held by bob"):
        assert part in record.getMessage()
    caplog.clear()
    assert face.call(skipping) == 7
    assert not caplog.records


@pytest.mark.parametrize("on_busy", ["skip", "raise"])
def test_with_a_timeout_skip_and_raise_wait_too(face: Face, on_busy: str) -> None:
    async def work() -> int:
        return 7

    patient = face.client.synchronized("name", on_busy=on_busy, timeout=PATIENCE)(face.function(work))
    with face.let_go_once_waited_for("name"):
        assert face.call(patient) == 7


def test_a_body_or_a_field_that_waits_in_vain_is_not_skipped(face: Face) -> None:
    class Invoice:
        @property
        def id(self) -> int:
            with face.other.lock("inner", timeout=0):
                return 42

    async def pay(invoice: Invoice) -> int:
        return invoice.id

    for name in ("outer", "invoice:{invoice.id}"):
        skipping = face.client.synchronized(name, on_busy="skip")(face.function(pay))
        with face.other.lock("inner"), pytest.raises(dibs.AcquireTimeout, match='"inner"'):
            face.call(skipping, Invoice())


def test_the_bodys_exception_is_raised_and_the_lock_given_back(face: Face) -> None:
    async def work(mine: BaseException) -> None:
        raise mine

    failing = face.client.synchronized("name", on_busy="skip")(face.function(work))
    for mine in (ValueError("mine"), GeneratorExit("mine")):
        with pytest.raises(type(mine), match="mine") as caught:
            face.call(failing, mine)
        assert caught.value is mine
        assert not face.other.inspect("name").holders


def test_it_is_not_re_entrant(face: Face) -> None:
    async def work(depth: int) -> None:
        if depth:
            again = recursive(depth - 1)
            await again if face.is_aio else None

    recursive = face.client.synchronized("name", timeout=0.05)(face.function(work))
    face.call(recursive, 0)
    with pytest.raises(dibs.AcquireTimeout):
        face.call(recursive, 1)
    assert not face.other.inspect("name").holders


def test_a_lock_that_was_taken_away_is_said_on_leaving(face: Face) -> None:
    told: list[str] = []
    heard = Event()

    def on_lost(hold: Any) -> None:
        told.append(hold.name)
        heard.set()

    async def work(number: int) -> int:
        face.other.break_(f"invoice:{number}", token=face.other.inspect(f"invoice:{number}").holders[0].token)
        await face.until(heard.is_set)
        return number

    losing = face.client.synchronized("invoice:{number}", on_lost=on_lost, lease=3)(face.function(work))
    with pytest.raises(dibs.LockLost, match="invoice:42"):
        face.call(losing, 42)
    assert told == ["invoice:42"]


def test_a_hold_that_is_too_old_is_lost(face: Face) -> None:
    async def work() -> None:
        await face.until(lambda: not face.other.inspect("name").holders)

    long = face.client.synchronized("name", max_hold=0.2)(face.function(work))
    with pytest.raises(dibs.LockLost):
        face.call(long)


def test_methods(face: Face) -> None:
    synchronized = face.client.synchronized

    class Invoice:
        def __init__(self, number: int) -> None:
            self.id = number

        @synchronized("invoice:{self.id}")
        @face.function
        async def pay(self, amount: int) -> tuple[int, tuple[str, ...]]:
            return amount, tuple(info.name for info in face.other.locks())

        @classmethod
        @synchronized("class:{cls.__name__}")
        @face.function
        async def every(cls) -> tuple[str, ...]:
            return tuple(info.name for info in face.other.locks())

        @staticmethod
        @synchronized("static:{number}")
        @face.function
        async def alone(number: int) -> tuple[str, ...]:
            return tuple(info.name for info in face.other.locks())

    class Reminder(Invoice):
        def pay(self, amount: int) -> Any:
            return super().pay(amount + 1)

    invoice = Invoice(42)
    assert face.call(invoice.pay, 7) == (7, ("invoice:42",))
    assert face.call(Invoice.pay, invoice, amount=8) == (8, ("invoice:42",))
    assert face.call(Reminder(43).pay, 7) == (8, ("invoice:43",))
    assert face.call(Reminder.every) == ("class:Reminder",)
    assert face.call(Invoice.alone, 5) == ("static:5",)
    assert face.call(invoice.alone, number=6) == ("static:6",)


def test_it_looks_like_the_function(face: Face) -> None:
    async def pay(number: int, by: str = "card") -> None:
        """Pays."""

    function = face.function(pay)
    paying = face.client.synchronized("invoice:{number}")(function)
    assert (paying.__name__, paying.__qualname__, paying.__doc__) == ("pay", pay.__qualname__, "Pays.")
    assert paying.__wrapped__ is function
    assert inspect.signature(paying) == inspect.signature(pay)
    assert inspect.iscoroutinefunction(paying) is face.is_aio


def test_it_stacks(face: Face) -> None:
    async def work(number: int) -> tuple[str, ...]:
        return tuple(info.name for info in face.other.locks())

    function = face.function(work)

    @wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        return paying(*args, **kwargs)

    decorate = face.client.synchronized("b:{number}")
    paying = decorate(face.client.synchronized("a:{number}", on_busy="skip")(function))
    assert face.call(plain, 1) == ("a:1", "b:1")
    assert face.call(partial(paying, number=2)) == ("a:2", "b:2")
    assert face.call(decorate(function), 3) == ("b:3",), "one decorator for several functions"


def test_cancelled_while_waiting_and_while_running() -> None:
    async def main(url: str) -> None:
        running = asyncio.Event()
        async with dibs.aio.connect(url) as client:

            @client.synchronized("name", on_busy="skip", timeout=PATIENCE)
            async def work() -> None:
                running.set()
                await asyncio.Event().wait()

            first = asyncio.create_task(work())
            await asyncio.wait_for(running.wait(), PATIENCE)
            second = asyncio.create_task(work())
            async with asyncio.timeout(PATIENCE):
                while not other.inspect("name").waiters:
                    await asyncio.sleep(0.002)
            for task, left in ((second, 1), (first, 0)):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with asyncio.timeout(PATIENCE):
                    while other.inspect("name").waiters:
                        await asyncio.sleep(0.002)
                assert len(other.inspect("name").holders) == left

    url = fresh_url()
    with dibs.connect(url) as other:
        asyncio.run(main(url))


def test_cancel_on_lost() -> None:
    url = fresh_url()
    other = dibs.connect(url)

    async def main() -> None:
        async with dibs.aio.connect(url) as client:

            @client.synchronized("name", cancel_on_lost=True, lease=3)
            async def work() -> None:
                other.break_("name", token=other.inspect("name").holders[0].token)
                await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)

            with pytest.raises(dibs.LockLost):
                await work()

    with other:
        asyncio.run(main())


shared = dibs.connect("memory://synchronized-pickled")


@shared.synchronized("double:{number}")
def double(number: int) -> int:
    return 2 * number


def test_it_pickles_by_its_name() -> None:
    again = pickle.loads(pickle.dumps(double))
    assert again is double
    assert again(21) == 42


SHOP = """
import multiprocessing, pathlib, sys, time
import dibs
client = dibs.connect("sqlite:///" + sys.argv[1] + "/shop.db")
inside = pathlib.Path(sys.argv[1], "inside")

@client.synchronized("shelf:{shelf}", timeout=20)
def take(shelf="a"):
    inside.touch(exist_ok=False)  # FileExistsError: another process is in here
    time.sleep(0.001)
    inside.unlink()

def take_often(taking, both_there):
    both_there.wait(20)
    for _ in range(20):
        taking()

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    both_there = spawn.Barrier(2)
    children = [spawn.Process(target=take_often, args=(take, both_there)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(sum(child.exitcode for child in children))
"""


def test_other_processes_get_it_by_its_name(tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text(SHOP)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_closed_client_says_so(face: Face) -> None:
    async def work() -> None:
        pytest.fail("it ran without the lock")

    client = face.connect()
    late = client.synchronized("name", on_busy="skip")(face.function(work))
    face.close(client)
    with pytest.raises(dibs.Closed):
        face.call(late)
