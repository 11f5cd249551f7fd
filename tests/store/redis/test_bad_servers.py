"""Whatever answers at a server's address: the call ends by its deadline and says what was wrong, memory stays bounded,
nothing is taken for an answer that is none, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends.redis import link
from lab import leaks
from lab.listener import Manner, hangs_up, is_mute, speaks_http
from store.redis import bad_peers as peers
from store.redis.bad_peers import Bad, answering, array, endlessly, greeted, now, says

TIMEOUT = 0.5
LATE = 20.0
"""Seconds; a call has one to end, and the machine may be busy."""
FACES = ("blocking", "aio")
LESS = 4 << 20
"""Bytes of an answer after which it is cut off in these tests: a flood of 64 MiB keeps a small machine busy."""
MOST = 100 * LESS
"""Bytes that all of them may take in memory, where small numbers grow tenfold, with what else clients need."""
SILENT = "did not answer|does not answer|not answer in time|no subscription"
NO_REDIS = "no Redis"
LONG = "longer than"
GONE = "closed|[Rr]eset|broke|hung up|no connection"
BEFORE: dict[str, tuple[Manner, str]] = {
    "hangs up": (hangs_up, GONE),
    "mute": (is_mute, SILENT),
    "drips": (peers.drips_on, f"{SILENT}|{NO_REDIS}|{GONE}"),
    "HTTP": (speaks_http, f"{NO_REDIS}|{GONE}|refuses"),
    "no protocol": (says(b"\xde\xad\xbe\xef\r\n"), f"{NO_REDIS}|{GONE}"),
    "an error without end": (endlessly(b"-ERR ", b"x"), f"{SILENT}|{NO_REDIS}|{GONE}|{LONG}"),
}
AFTER: dict[str, tuple[Manner, str]] = {
    "hangs up": (greeted(hangs_up), GONE),
    "mute": (greeted(is_mute), SILENT),
    "drips": (greeted(peers.drips_on), SILENT),
    "less than nothing": (greeted(says(b"$-7\r\n")), NO_REDIS),
    "an array of less than nothing": (greeted(says(b"*-7\r\n")), NO_REDIS),
    "a number that is none": (greeted(says(b":one\r\n")), NO_REDIS),
    "no protocol": (greeted(says(b"\xde\xad\xbe\xef\r\n")), NO_REDIS),
    "breaks off": (greeted(says(b"*6\r\n:1\r\n:2\r\n$10\r\nx")), SILENT),
}
FLOODS: dict[str, Manner] = {
    "512 MB, announced": greeted(endlessly(b"$536870912\r\n", b"\0")),
    "8 EB, announced": greeted(endlessly(b"$9223372036854775807\r\n", b"\0")),
    "an array without an end": greeted(endlessly(b"*50000000\r\n", b":1000\r\n")),
    "an array of arrays without an end": greeted(endlessly(b"", b"*1\r\n")),
    "a line without an end": greeted(endlessly(b"+", b"x")),
}
WRONG: dict[str, bytes] = {
    "a word": b"+OK\r\n",
    "a number": b":1\r\n",
    "text": b"$5\r\ngrant\r\n",
    "nothing": b"$-1\r\n",
    "no array": b"*-1\r\n",
    "an array of nothing": b"*0\r\n",
    "one word": array(b"x"),
    "two numbers": array(1, 2),
    "words for numbers": array(*[b"x"] * 6),
    "nothing for numbers": b"*6\r\n" + b"$-1\r\n" * 6,
    "seven numbers": array(*[1] * 7),
    "arrays for numbers": b"*6\r\n" + array(1) * 6,
    "an error of its own": b"-OWN something went wrong\r\n",
    "words for a terminal": b"-\x1b]0;owned\x07 \x1b[2J\r\n",
    "an error of 10 MB": b"-ERR " + b"x" * 10_000_000 + b"\r\n",
    "a server that is nowhere": b"-MOVED 1 :0\r\n",
    "a server with a strange port": b"-MOVED 1 127.0.0.1:99999999\r\n",
    "a server without a port": b"-MOVED 1 127.0.0.1\r\n",
    "a word of another protocol": b"%1\r\n$1\r\nx\r\n:1\r\n",
}


def taken(face: str, url: str) -> Any:
    """A hold, None, or what an acquire raises. It ends in time."""

    async def asked() -> Any:
        async with dibs.aio.connect(url) as client:
            return await client.lock("a").acquire(timeout=TIMEOUT)

    begun = time.monotonic()
    try:
        if face == "aio":
            return asyncio.run(asked())
        with dibs.connect(url) as client:
            return client.lock("a").acquire(timeout=TIMEOUT)
    except dibs.DibsError as error:
        return error
    finally:
        assert time.monotonic() - begun < LATE


def refused(face: str, bad: Bad, why: str = "") -> dibs.StoreError:
    error = taken(face, bad.url)
    assert isinstance(error, dibs.StoreError), error
    text = str(error)
    assert '"a" on redis://' in text
    assert text.isprintable()
    assert len(text) < 2000
    assert re.search(why, text), text
    assert 0 < bad.calls < 60, "it calls on and on"
    return error


def all_refused(face: str, cases: Mapping[str, tuple[Manner, str]]) -> None:
    """At the same time, as each waits; of none of them anything is left."""

    def one(case: str) -> None:
        manner, why = cases[case]
        with Bad(manner) as bad:
            try:
                refused(face, bad, why)
            except BaseException as error:
                error.add_note(case)
                raise

    with leaks.watch(within=LATE), ThreadPoolExecutor(len(cases)) as pool:
        for done in [pool.submit(one, case) for case in cases]:
            done.result()


@pytest.mark.parametrize("face", FACES)
def test_no_greeting(face: str) -> None:
    all_refused(face, BEFORE)


@pytest.mark.parametrize("face", FACES)
def test_no_answer(face: str) -> None:
    all_refused(face, AFTER)


@pytest.mark.parametrize("face", FACES)
def test_an_answer_of_another_shape(face: str) -> None:
    """It is no grant, and no error but one of ours."""
    all_refused(face, {case: (answering(answer), "") for case, answer in WRONG.items()})


class Peak:
    """How much more memory this process had in use at any moment than at the beginning."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._read("VmRSS")

    def bytes(self) -> int:
        return self._read("VmHWM") - self._before

    @staticmethod
    def _read(field: str) -> int:
        found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


@pytest.mark.parametrize("face", FACES)
def test_answers_without_an_end(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the kernel does not tell how much memory was in use")
    assert link.MOST <= 64 << 20
    monkeypatch.setattr(link, "MOST", LESS)
    peak = Peak()
    all_refused(face, {case: (flood, f"{LONG}|{NO_REDIS}|{SILENT}") for case, flood in FLOODS.items()})
    print(f"figure: {len(FLOODS)} answers without an end, {face}: {peak.bytes() >> 20} MiB in use at most")
    assert peak.bytes() < MOST


@pytest.mark.parametrize("face", FACES)
def test_answers_to_what_nobody_asked(face: str) -> None:
    """One that is one answer ahead would grant what was refused."""
    with Bad(peers.says_more_than_was_asked) as bad:
        refused(face, bad)


@pytest.mark.parametrize("face", FACES)
def test_pushes_amid_answers(face: str) -> None:
    with Bad(peers.pushes_amid_answers) as bad:
        assert getattr(taken(face, bad.url), "token", None), "a push is no answer"


@pytest.mark.parametrize("face", FACES)
def test_a_server_that_answers_well_would_be_used(face: str) -> None:
    """What is refused here is not refused for another reason."""
    with Bad(answering(peers.granted)) as bad:
        assert getattr(taken(face, bad.url), "token", 0) <= now()
