#!/usr/bin/env python3
"""The decorator: what `synchronized` adds to a free pair.

  bench/decorator.py

decorator    On `memory://`, in many short turns: `with client.lock(...)`, which the decorator replaces; the same
             through the decorator, with a constant name and with one from the call; and `with` on a lock object that
             is kept, the cheapest free pair. In both APIs.
             Bars: 10 us more than the first, and 10 us more than the last.
"""

from __future__ import annotations

from contextlib import ExitStack

from measure import Report, Settings, Timed, in_loop, interleaved, main, microseconds, p50, timed

MADE, KEPT, CONSTANT, FIELD = "with client.lock()", "with, kept object", "constant name", "{invoice.id}"


class Invoice:
    id = 42


def decorator(report: Report, settings: Settings) -> None:
    with ExitStack() as stack:
        for api, cases in (("dibs", blocking(stack)), ("dibs.aio", awaited(stack))):
            times = interleaved(report, cases, 200, settings.rounds * settings.choose(20, 5))
            middle = {name: p50(some) * 1e6 for name, some in times.items()}
            for name, some in times.items():
                added = {"to made_us": middle[name] - middle[MADE], "to kept_us": middle[name] - middle[KEPT]}
                report.line(f"{api} {name}", {**microseconds(some), **added})
            for peer in (MADE, KEPT):
                for name in (CONSTANT, FIELD):
                    added_us, what = middle[name] - middle[peer], f"{api}, {name}: 10 us more than {peer}"
                    report.limit(what, added_us, "us", most=10.0, peer=(peer, middle[peer]))


def blocking(stack: ExitStack) -> dict[str, Timed]:
    import dibs

    client = stack.enter_context(dibs.connect("memory://bench-decorator"))
    lock, invoice = client.lock("kept"), Invoice()

    def kept() -> None:
        with lock:
            body(invoice)

    def made() -> None:
        with client.lock("made"):
            body(invoice)

    def body(invoice: Invoice) -> None: ...

    constant = client.synchronized("constant")(body)
    field = client.synchronized("invoice:{invoice.id}")(body)
    return {
        MADE: timed(made),
        KEPT: timed(kept),
        CONSTANT: timed(lambda: constant(invoice)),
        FIELD: timed(lambda: field(invoice)),
    }


def awaited(stack: ExitStack) -> dict[str, Timed]:
    client, timed_there = in_loop("memory://bench-decorator", stack)
    lock, invoice = client.lock("aio-kept"), Invoice()

    async def kept() -> None:
        async with lock:
            await body(invoice)

    async def made() -> None:
        async with client.lock("aio-made"):
            await body(invoice)

    async def body(invoice: Invoice) -> None: ...

    constant = client.synchronized("aio-constant")(body)
    field = client.synchronized("aio-invoice:{invoice.id}")(body)

    return {
        MADE: timed_there(made),
        KEPT: timed_there(kept),
        CONSTANT: timed_there(lambda: constant(invoice)),
        FIELD: timed_there(lambda: field(invoice)),
    }


ROWS = {"decorator": decorator}

if __name__ == "__main__":
    main(__doc__, ROWS)
