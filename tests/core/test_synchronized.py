"""`synchronized` in both APIs: the body runs under the lock, and what happens when that is busy, lost or cancelled."""

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
from core.synchronizing import Api, fresh_url
from process.children import PATIENCE


@pytest.fixture(params=["blocking", "aio"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    found = Api(request.param, fresh_url())
    yield found
    found.end()


def test_the_body_runs_under_the_lock(api: Api) -> None:
    async def pay(number: int, *, twice: bool = False) -> tuple[int, bool, list[str]]:
        return number, twice, [holder.owner for holder in api.other.inspect(f"invoice:{number}").holders]

    paying = api.client.synchronized("invoice:{number}", owner="ana")(api.function(pay))
    assert api.call(paying, 42, twice=True) == (42, True, ["ana"])
    assert api.other.inspect("invoice:42").holders == ()


def test_one_at_a_time(api: Api) -> None:
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await api.pause()
        inside -= 1

    one_at_a_time = api.client.synchronized("one", timeout=PATIENCE)(api.function(work))
    api.together(*[one_at_a_time] * 8)
    assert most == 1


def test_it_waits_by_default(api: Api) -> None:
    ran = []

    async def work() -> int:
        ran.append(True)
        return 7

    waiting = api.client.synchronized("name")(api.function(work))
    with api.let_go_once_waited_for("name"):
        assert api.call(waiting) == 7
    assert ran


def test_busy_is_an_error_that_says_who(api: Api) -> None:
    async def work() -> None:
        pytest.fail("it ran without the lock")

    for options in ({"timeout": 0.05}, {"on_busy": "raise"}, {"on_busy": "raise", "timeout": 0.05}):
        trying = api.client.synchronized("name", **options)(api.function(work))
        with api.other.lock("name", owner="bob"), pytest.raises(dibs.Busy, match=r'"name" on .*held by bob') as caught:
            api.call(trying)
        assert isinstance(caught.value, TimeoutError)


def test_a_skipped_call_gives_none_and_is_in_the_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    ran = []

    async def nightly_report() -> int:
        ran.append(True)
        return 7

    skipping = api.client.synchronized("report", on_busy="skip")(api.function(nightly_report))
    with caplog.at_level(logging.INFO, "dibs"), api.other.lock("report", owner="bob"):
        assert api.call(skipping) is None
    assert not ran
    (record,) = [record for record in caplog.records if record.name == "dibs.lock"]
    assert record.levelno == logging.INFO
    for part in ("skipped", "nightly_report", '"report" on', "held by bob"):
        assert part in record.getMessage()
    caplog.clear()
    assert api.call(skipping) == 7
    assert not caplog.records


@pytest.mark.parametrize("on_busy", ["skip", "raise"])
def test_with_a_timeout_skip_and_raise_wait_too(api: Api, on_busy: str) -> None:
    async def work() -> int:
        return 7

    patient = api.client.synchronized("name", on_busy=on_busy, timeout=PATIENCE)(api.function(work))
    with api.let_go_once_waited_for("name"):
        assert api.call(patient) == 7


def test_a_body_or_a_field_that_waits_in_vain_is_not_skipped(api: Api) -> None:
    class Invoice:
        @property
        def id(self) -> int:
            with api.other.lock("inner", timeout=0):
                return 42

    async def pay(invoice: Invoice) -> int:
        return invoice.id

    for name in ("outer", "invoice:{invoice.id}"):
        skipping = api.client.synchronized(name, on_busy="skip")(api.function(pay))
        with api.other.lock("inner"), pytest.raises(dibs.AcquireTimeout, match='"inner"'):
            api.call(skipping, Invoice())


def test_the_bodys_exception_is_raised_and_the_lock_given_back(api: Api) -> None:
    async def work(mine: BaseException) -> None:
        raise mine

    failing = api.client.synchronized("name", on_busy="skip")(api.function(work))
    for mine in (ValueError("mine"), GeneratorExit("mine")):
        with pytest.raises(type(mine), match="mine") as caught:
            api.call(failing, mine)
        assert caught.value is mine
        assert not api.other.inspect("name").holders


def test_it_is_not_re_entrant(api: Api) -> None:
    async def work(depth: int) -> None:
        if depth:
            again = recursive(depth - 1)
            await again if api.is_aio else None

    recursive = api.client.synchronized("name", timeout=0.05)(api.function(work))
    api.call(recursive, 0)
    with pytest.raises(dibs.AcquireTimeout):
        api.call(recursive, 1)
    assert not api.other.inspect("name").holders


def test_a_lock_that_was_taken_away_is_said_on_leaving(api: Api) -> None:
    told: list[str] = []
    heard = Event()

    def on_lost(hold: Any) -> None:
        told.append(hold.name)
        heard.set()

    async def work(number: int) -> int:
        api.other.break_(f"invoice:{number}", token=api.other.inspect(f"invoice:{number}").holders[0].token)
        await api.until(heard.is_set)
        return number

    losing = api.client.synchronized("invoice:{number}", on_lost=on_lost, lease=3)(api.function(work))
    with pytest.raises(dibs.LockLost, match="invoice:42"):
        api.call(losing, 42)
    assert told == ["invoice:42"]


def test_a_hold_that_is_too_old_is_lost(api: Api) -> None:
    async def work() -> None:
        await api.until(lambda: not api.other.inspect("name").holders)

    long = api.client.synchronized("name", max_hold=0.2)(api.function(work))
    with pytest.raises(dibs.LockLost):
        api.call(long)


def test_methods(api: Api) -> None:
    synchronized = api.client.synchronized

    class Invoice:
        def __init__(self, number: int) -> None:
            self.id = number

        @synchronized("invoice:{self.id}")
        @api.function
        async def pay(self, amount: int) -> tuple[int, tuple[str, ...]]:
            return amount, tuple(info.name for info in api.other.locks())

        @classmethod
        @synchronized("class:{cls.__name__}")
        @api.function
        async def every(cls) -> tuple[str, ...]:
            return tuple(info.name for info in api.other.locks())

        @staticmethod
        @synchronized("static:{number}")
        @api.function
        async def alone(number: int) -> tuple[str, ...]:
            return tuple(info.name for info in api.other.locks())

    class Reminder(Invoice):
        def pay(self, amount: int) -> Any:
            return super().pay(amount + 1)

    invoice = Invoice(42)
    assert api.call(invoice.pay, 7) == (7, ("invoice:42",))
    assert api.call(Invoice.pay, invoice, amount=8) == (8, ("invoice:42",))
    assert api.call(Reminder(43).pay, 7) == (8, ("invoice:43",))
    assert api.call(Reminder.every) == ("class:Reminder",)
    assert api.call(Invoice.alone, 5) == ("static:5",)
    assert api.call(invoice.alone, number=6) == ("static:6",)


def test_it_looks_like_the_function(api: Api) -> None:
    async def pay(number: int, by: str = "card") -> None:
        """Pays."""

    function = api.function(pay)
    paying = api.client.synchronized("invoice:{number}")(function)
    assert (paying.__name__, paying.__qualname__, paying.__doc__) == ("pay", pay.__qualname__, "Pays.")
    assert paying.__wrapped__ is function
    assert inspect.signature(paying) == inspect.signature(pay)
    assert inspect.iscoroutinefunction(paying) is api.is_aio


def test_it_stacks(api: Api) -> None:
    async def work(number: int) -> tuple[str, ...]:
        return tuple(info.name for info in api.other.locks())

    function = api.function(work)

    @wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        return paying(*args, **kwargs)

    decorate = api.client.synchronized("b:{number}")
    paying = decorate(api.client.synchronized("a:{number}", on_busy="skip")(function))
    assert api.call(plain, 1) == ("a:1", "b:1")
    assert api.call(partial(paying, number=2)) == ("a:2", "b:2")
    assert api.call(decorate(function), 3) == ("b:3",), "one decorator for several functions"


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


def test_a_closed_client_says_so(api: Api) -> None:
    async def work() -> None:
        pytest.fail("it ran without the lock")

    client = api.connect()
    late = client.synchronized("name", on_busy="skip")(api.function(work))
    api.close(client)
    with pytest.raises(dibs.Closed):
        api.call(late)
