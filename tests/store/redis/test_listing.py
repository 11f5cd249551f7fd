"""Names as they are listed: all of them, in order, whatever signs are in them, and nobody else's."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

import dibs
from dibs.backends.redis import queue
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.servers import shared_redis
from security.test_inputs import ODD_NAMES
from store.redis.hashes import Raw


def test_many_names_come_in_order_and_in_pages(url: str, seat: Seat, raw: Raw) -> None:
    """Claims like ours, planted: to acquire as many would only take longer."""
    count = 2 * queue.PAGE
    names = sorted(f"n{number}" for number in range(count))
    with raw.client.pipeline(transaction=False) as many:
        planting = Raw(many, raw.prefix)
        for name in names:
            planting.queue(f"dibs:{name}").plant_alone(raw.now())
        many.execute()
    before = raw.client.info("commandstats").get("cmdstat_keys", {"calls": 0})["calls"]
    pages = [seat.names("dibs:n")]
    while pages[-1]:
        assert len(pages[-1]) <= queue.PAGE
        pages.append(seat.names("dibs:n", pages[-1][-1]))
    assert len(pages) == 3
    assert list(chain(*pages)) == [f"dibs:{name}" for name in names]
    with dibs.connect(url) as client:
        assert [info.name for info in client.locks("n12")] == [name for name in names if name.startswith("n12")]
    assert raw.client.info("commandstats").get("cmdstat_keys", {"calls": 0})["calls"] == before, "KEYS was used"


def test_listings_in_turn_go_through_the_keys_once_each(seat: Seat, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PAGE", 2)
    for name in ("a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "b4", "b5"):
        seat.joined(name=f"dibs:{name}")

    def scans() -> int:
        return int(raw.client.info("commandstats")["cmdstat_scan"]["calls"])

    begun = listed_in_turn(seat, "dibs:a")
    before = scans()
    assert listed_in_turn(seat, "dibs:a") == begun == [[f"dibs:a{number}" for number in range(1, 6)]]
    one = scans() - before
    before = scans()
    found = listed_in_turn(seat, "dibs:a", "dibs:b")
    assert found == [[f"dibs:{letter}{number}" for number in range(1, 6)] for letter in "ab"]
    assert scans() - before < 4 * one, "eight pages, and each went through all keys"


def listed_in_turn(seat: Seat, *prefixes: str) -> list[list[str]]:
    """A page of each, and so on."""
    found: dict[str, list[str]] = {prefix: [] for prefix in prefixes}
    going = list(prefixes)
    while going:
        for prefix in list(going):
            page = seat.names(prefix, "".join(found[prefix][-1:]))
            found[prefix] += page
            if not page:
                going.remove(prefix)
    return list(found.values())


def test_signs_with_a_meaning_have_none(url: str) -> None:
    """Neither in a name nor in a prefix of a listing, nor in the store's own prefix."""
    signs = ["*", "?", "[a-z]", "[^a]", "\\", "\\*", "a*|line", "{a}"]
    names = [*ODD_NAMES, "plain", "apple", *signs, *(f"{sign}x" for sign in signs)]
    names = list(dict.fromkeys(names))
    with dibs.connect(url) as client:
        assert all(client.lock(name).acquire(timeout=30) for name in names)
        assert [info.name for info in client.locks()] == sorted(names)
        for name in names:
            expected = sorted(other for other in names if other.startswith(name))
            assert [info.name for info in client.locks(name)] == expected
    server = url.partition("?")[0]
    with (
        dibs.connect(server, prefix="app[1]*/") as client,
        dibs.connect(server, prefix="app1-other/") as other,
        client.lock("ours", timeout=30),
        other.lock("theirs", timeout=30),
    ):
        assert [info.name for info in client.locks()] == ["ours"]


def test_prefixes_keep_apart(tmp_path: Path) -> None:
    """One that begins like another, too; and each is a store with an id of its own."""
    url, _, prefix = shared_redis.fresh(tmp_path).partition("?prefix=")
    with dibs.connect(url, prefix=prefix) as short, dibs.connect(url, prefix=f"{prefix}dibs:") as long:
        assert short.lock("a").acquire(timeout=0)
        assert long.lock("a").acquire(timeout=0)
        short.fence("f").admit(5)
        long.fence("f").admit(3)
        assert long.cell("c").set(b"x", 0) == 1
        assert short.cell("c").get() == (None, 0)
        assert [info.name for info in long.locks()] == ["a"]
    seats = [Seat(f"{url}?prefix={prefix}{more}") for more in ("", "", "dibs:")]
    try:
        found = [step(seat.queue.identity(seat.soon)) for seat in seats]
    finally:
        for seat in seats:
            seat.close()
    assert found[0] == found[1] != found[2]


def test_keys_of_others_are_not_listed(url: str, raw: Raw) -> None:
    """No text, no queue, of another space; and a name that nobody uses any more."""
    for key in (b"\xff\xfe|line", b"x|cell", b"dibs:x|fence", b"dibs:y"):
        raw.client.set(raw.prefix.encode() + key, "theirs")
    with dibs.connect(url) as client:
        assert client.lock("a").acquire(timeout=30)
        with client.lock("idle", timeout=30):
            """Its last ticket stays for some seconds."""
        assert raw.client.exists(raw.queue("dibs:idle").key)
        assert [info.name for info in client.locks()] == ["a"]


def test_a_name_that_comes_while_it_is_listed_is_nobodys_loss(seat: Seat) -> None:
    """A listing shows the names as they were when it began; the next one has the new name."""
    for name in ("dibs:a", "dibs:c"):
        seat.joined(name=name)
    assert seat.names("dibs:") == ["dibs:a", "dibs:c"]
    seat.joined(name="dibs:b")
    assert seat.names("dibs:", "dibs:c") == []
    assert seat.names("dibs:") == ["dibs:a", "dibs:b", "dibs:c"]
