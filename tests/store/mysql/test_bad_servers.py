"""Whatever answers at a server's address: the call ends by its deadline and says what was wrong, memory stays bounded,
and nothing is taken for an answer that is none."""

from __future__ import annotations

import asyncio
import time

import pytest

import dibs
import dibs.aio
from dibs.backends.mysql import wire
from lab.listener import Listener, Manner, hangs_up, is_mute, speaks_http
from store.mysql.bad_peers import endlessly, greeted, packets, rows, says

TIMEOUT = 0.5
LATE = 20.0
LESS = 1 << 20
"""Bytes of an answer after which it is cut off in these tests."""
SECRET = "s3cret"
MANNERS: dict[str, Manner] = {
    "hangs up": hangs_up,
    "mute": is_mute,
    "HTTP": speaks_http,
    "hangs up, asked": greeted(hangs_up),
    "mute, asked": greeted(is_mute),
    "no protocol": greeted(says(b"\xde\xad\xbe\xef" * 8)),
    "breaks off": greeted(says(rows((b"1", b"1"))[:-9])),
    "more than was asked for": greeted(says(rows((b"1", b"0")) * 2)),
    "asks for a file": greeted(says(packets(b"\xfb/etc/passwd"))),
    "a row that is longer than it says": greeted(says(rows((b"1",))[:-11] + packets(b"\x7fx", number=4))),
    "rows without an end": greeted(endlessly(rows((b"1",))[:-9], packets(b"\x03abc") * 1000)),
    "a packet of 16 MB": greeted(endlessly(b"\xff\xff\xff\x01", b"\x01" * 65_536)),
    "an error of an odd shape": greeted(says(packets(b"\xff\x15"))),
    "no row": greeted(says(rows((b"1",))[: len(packets(b"\x01"))] + packets(b"\xfe\x00\x00\x02\x00", number=2) * 2)),
    "words for numbers": greeted(says(rows((b"now", b"yes", b"x", b"x", b"x", b"x", b"x", b"")))),
    "other columns": greeted(says(rows((b"1",)))),
}


@pytest.fixture(autouse=True)
def _less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST", LESS)


@pytest.mark.parametrize("face", ["blocking", "aio"])
@pytest.mark.parametrize("manner", MANNERS)
def test_no_answer_of_ours(manner: str, face: str) -> None:
    with Listener("mysql", MANNERS[manner]) as bad:
        url = f"mysql://ana:{SECRET}@{bad.host}/shop"
        begun = time.monotonic()
        with pytest.raises(dibs.StoreError) as caught:
            asyncio.run(in_a_loop(url)) if face == "aio" else in_a_thread(url)
        assert time.monotonic() - begun < LATE
        assert bad.calls
    text = str(caught.value)
    assert '"a" on mysql://' in text
    assert SECRET not in text


def in_a_thread(url: str) -> None:
    with dibs.connect(url) as client:
        client.lock("a").acquire(timeout=TIMEOUT)


async def in_a_loop(url: str) -> None:
    async with dibs.aio.connect(url) as client:
        await client.lock("a").acquire(timeout=TIMEOUT)


def test_a_true_answer_of_a_megabyte() -> None:
    answer = wire.Answer()
    whole = rows(*[(b"x" * 250,)] * 2000)
    parts = [whole[at : at + 1000] for at in range(0, len(whole), 1000)]
    assert [answer.feed(part) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(answer.result()[0]) == 2000
