"""`synchronized` in both APIs: the body runs under the lock, and what happens when that is busy or interrupted."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from functools import partial, wraps
from itertools import count
from typing import Any

import pytest

import dibs
import dibs.aio
from core.synchronizing import Api, fresh_url
from interrupts.points import Interrupt
from process.children import PATIENCE, until


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


def test_it_waits_by_default_and_with_a_timeout(api: Api) -> None:
    async def work() -> int:
        return 7

    for options in ({}, {"on_busy": "skip", "timeout": PATIENCE}, {"on_busy": "raise", "timeout": PATIENCE}):
        patient = api.client.synchronized("name", **options)(api.function(work))
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


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_an_interrupt_at_any_point_leaves_nothing_held(busy: bool) -> None:
    """The watchdog drops an unwanted claim at its next renewal, after 0.5 s, but renews a forgotten one for ever."""
    url = fresh_url()
    with dibs.connect(url, lease=1.5) as client, dibs.connect(url, lease=600) as other:

        @client.synchronized("n:{number}", on_busy="skip")
        def work(number: int) -> int:
            return number

        def stands(name: str) -> bool:
            info = other.inspect(name)
            return any(one.remaining < 300 for one in (*info.holders, *info.waiters))

        work(0)
        points: dict[str, str] = {}
        for number in count(1):
            name = f"n:{number}"
            hold = other.lock(name).acquire() if busy else None
            with Interrupt(number) as interrupt:
                assert work(number) == (None if busy else number)
            if hold is not None:
                hold.release()
            if interrupt.point is None:
                break
            points[name] = str(interrupt.point)
        assert len(points) > 30, "the tracing sees nothing"
        for name, point in points.items():
            until(lambda name=name: not stands(name), what=f"free after an interrupt at {point}")
