"""Names as they are listed: all of them, in order, whatever signs are in them, and nobody else's."""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path

import pytest

import dibs
import dibs.aio
from dibs.backends.redis import listing
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.servers import shared_redis
from security.test_inputs import ODD_NAMES
from store.redis.hashes import Raw


def test_five_thousand_names_come_in_order_and_in_pages(url: str, seat: Seat, raw: Raw) -> None:
    count = 5000

    async def main() -> list[str]:
        async with dibs.aio.connect(url) as client:
            await asyncio.gather(*(client.lock(f"n{number}").acquire() for number in range(count)))
            pages = [await asyncio.to_thread(seat.names, "dibs:n")]
            while pages[-1]:
                assert len(pages[-1]) <= listing.PAGE
                pages.append(await asyncio.to_thread(seat.names, "dibs:n", pages[-1][-1]))
            assert len(pages) == count // listing.PAGE + 1
            assert list(chain(*pages)) == sorted(f"dibs:n{number}" for number in range(count))
            return [info.name async for info in client.locks("n12")]

    before = raw.client.info("commandstats").get("cmdstat_keys", {"calls": 0})["calls"]
    found = asyncio.run(main())
    assert found == sorted(name for name in map("n{}".format, range(count)) if name.startswith("n12"))
    assert raw.client.info("commandstats").get("cmdstat_keys", {"calls": 0})["calls"] == before, "KEYS was used"


def test_odd_names_are_listed_as_they_are(url: str) -> None:
    with dibs.connect(url) as client:
        holds = [client.lock(name).acquire(timeout=5) for name in ODD_NAMES]
        assert all(holds)
        assert [info.name for info in client.locks()] == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            expected = sorted(other for other in ODD_NAMES if other.startswith(name))
            assert [info.name for info in client.locks(name)] == expected


@pytest.mark.parametrize("sign", ["*", "?", "[a-z]", "[^a]", "\\", "\\*", "a*|line", "{a}"])
def test_signs_with_a_meaning_have_none(url: str, sign: str) -> None:
    with dibs.connect(url) as client:
        for name in ("plain", "apple", sign, f"{sign}x"):
            assert client.lock(name).acquire(timeout=5)
        assert [info.name for info in client.locks(sign)] == sorted([sign, f"{sign}x"])


def test_prefixes_keep_apart(tmp_path: Path) -> None:
    """One that begins like another, too."""
    url, _, prefix = shared_redis.fresh(tmp_path).partition("?prefix=")
    with dibs.connect(url, prefix=prefix) as short, dibs.connect(url, prefix=f"{prefix}dibs:") as long:
        assert short.lock("a").acquire(timeout=0)
        assert long.lock("a").acquire(timeout=0)
        short.fence("f").admit(5)
        long.fence("f").admit(3)
        assert long.cell("c").set(b"x", 0) == 1
        assert short.cell("c").get() == (None, 0)
        assert [info.name for info in long.locks()] == ["a"]


def test_what_is_not_ours_is_not_listed(url: str, raw: Raw) -> None:
    """No text, no line, of another space; and a name that nobody uses any more."""
    for key in (b"\xff\xfe|line", b"x|cell", b"dibs:x|fence", b"dibs:y"):
        raw.client.set(raw.prefix.encode() + key, "theirs")
    with dibs.connect(url) as client:
        assert client.lock("a").acquire(timeout=5)
        with client.lock("idle", timeout=5):
            """Its last ticket stays for some days."""
        assert raw.client.exists(raw.line("dibs:idle").key)
        assert [info.name for info in client.locks()] == ["a"]


def test_a_name_that_comes_while_it_is_listed_is_nobodys_loss(seat: Seat) -> None:
    """A listing shows the names as they were when it began; the next one has the new name."""
    for name in ("dibs:a", "dibs:c"):
        seat.joined(name=name)
    assert seat.names("dibs:") == ["dibs:a", "dibs:c"]
    seat.joined(name="dibs:b")
    assert seat.names("dibs:", "dibs:c") == []
    assert seat.names("dibs:") == ["dibs:a", "dibs:b", "dibs:c"]


def test_the_id_of_a_store_is_everybodys(url: str, tmp_path: Path) -> None:
    """And another prefix is another store."""
    elsewhere = Seat(shared_redis.fresh(tmp_path))
    one, other = Seat(url), Seat(url)
    try:
        found = [step(seat.line.identity(seat.soon)) for seat in (one, other, elsewhere)]
    finally:
        for seat in (one, other, elsewhere):
            seat.close()
    assert found[0] == found[1] != found[2]
