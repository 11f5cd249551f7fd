"""Uses of `synchronized` that a type checker must understand; read as uses.py is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal, assert_type

import dibs
import dibs.aio

client = dibs.connect()
aio = dibs.aio.connect()


class Invoice:
    id = 42

    @client.synchronized("invoice:{self.id}")
    def pay(self, amount: int, *, by: str = "card") -> bool:
        return amount > 0

    @client.synchronized("invoice:{self.id}", on_busy="skip", timeout=5)
    def remind(self) -> int:
        return self.id

    @staticmethod
    @client.synchronized("invoices")
    def count() -> int:
        return 1

    @classmethod
    @client.synchronized("invoices", on_busy="skip")
    def latest(cls) -> str:
        return cls.__name__

    @aio.synchronized("invoice:{self.id}", on_busy="skip")
    async def send(self, to: str) -> bytes:
        return to.encode()


@client.synchronized("report:{day}", lease=5, info={"job": 1})
def report(day: str) -> list[str]:
    return [day]


@client.synchronized("report:{day}", on_busy="raise")
def report_or_raise(day: str) -> list[str]:
    return [day]


@client.synchronized("report:{day}", on_busy="skip")
def report_or_skip(day: str) -> list[str]:
    return [day]


@client.synchronized("nothing", on_busy="skip")
def nothing() -> None: ...


@aio.synchronized("report:{day}", cancel_on_lost=True)
async def aio_report(day: str) -> list[str]:
    return [day]


@aio.synchronized("report:{day}", "skip")
async def aio_report_or_skip(day: str) -> list[str]:
    return [day]


def blocking(invoice: Invoice, on_busy: Literal["wait", "skip"], word: str) -> None:
    assert_type(report("monday"), list[str])
    assert_type(report_or_raise(day="monday"), list[str])
    assert_type(report_or_skip("monday"), list[str] | None)
    report_or_skip("monday").append("tuesday")  # type: ignore[union-attr]  # it may have been skipped
    report(1)  # type: ignore[arg-type]
    report(night="monday")  # type: ignore[call-arg]

    assert_type(invoice.pay(5, by="cash"), bool)
    assert_type(Invoice.pay(invoice, 5), bool)
    assert_type(invoice.remind(), int | None)
    assert_type(Invoice.count(), int)
    assert_type(Invoice.latest(), str | None)
    invoice.pay()  # type: ignore[call-arg]
    invoice.pay(5, by=7)  # type: ignore[arg-type]

    if on_busy == "wait":
        assert_type(client.synchronized("a", on_busy)(len)("b"), int)
    client.synchronized("a", word)  # type: ignore[call-overload]
    client.synchronized("a", on_busy="fail")  # type: ignore[call-overload]
    client.synchronized("a", patience=5)  # type: ignore[call-overload]
    client.synchronized("a", timeout="5")  # type: ignore[call-overload]
    client.synchronized("a", cancel_on_lost=True)  # type: ignore[call-overload]  # asyncio only
    client.synchronized(report)  # type: ignore[call-overload]  # the parentheses were forgotten
    client.synchronized("a")(invoice)  # type: ignore[arg-type]


async def awaited(invoice: Invoice) -> None:
    assert_type(await aio_report("monday"), list[str])
    assert_type(await aio_report_or_skip("monday"), list[str] | None)
    assert_type(await invoice.send("ana"), bytes | None)
    kept: Callable[[str], Coroutine[Any, Any, list[str]]] = aio_report
    assert_type(await kept("monday"), list[str])
    aio_report("monday").append("tuesday")  # type: ignore[attr-defined]
    await aio_report(1)  # type: ignore[arg-type]
    aio.synchronized("a")(report)  # type: ignore[arg-type]  # no coroutine function
