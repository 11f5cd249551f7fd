"""Who is told what, once; what is taken back at the server, and what must not be; all of it set again elsewhere."""

from __future__ import annotations

import struct
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs._shared import LONGEST_NAMESPACE
from dibs.backends.zookeeper.paths import path_of
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Event, Reader
from dibs.backends.zookeeper.wire.session import CHILDREN, DATA, EXISTENCE, Watcher, Watches
from dibs.core.names import LONGEST, prefix_of

KINDS = (DATA, EXISTENCE, CHILDREN)
TOLD = {
    codec.CREATED: {EXISTENCE},
    codec.DELETED: {DATA, EXISTENCE, CHILDREN},
    codec.CHANGED: {DATA, EXISTENCE},
    codec.CHILDREN: {CHILDREN},
    -1: set(),
    9: set(),
}
"""Which watches a server's event is about."""
SERVERS_LIMIT = 0xFFFFF
"""Bytes of a request that a server reads, unless it was told otherwise."""


class Someone:
    """One who watches; each is another."""

    def __call__(self, event: Event) -> None:
        raise AssertionError("whoever keeps the watches tells nobody by itself")


def entered(*watched: tuple[str, str]) -> tuple[Watches, dict[tuple[str, str], Watcher]]:
    watches, who = Watches(), {}
    for kind, path in watched:
        who[kind, path] = Someone()
        watches.add(kind, path, who[kind, path])
    return watches, who


def paths_in(request: codec.Request) -> tuple[int, list[list[str]]]:
    """The zxid and the three lists of a request that sets watches, as a server reads it."""
    reader = Reader(request.body)
    (zxid,) = reader.unpack(struct.Struct("!q"))
    return zxid, [reader.texts(), reader.texts(), reader.texts()]


@pytest.mark.parametrize("kind", TOLD)
def test_an_event_is_for_those_who_watch_that_path_so_and_no_longer(kind: int) -> None:
    watches, who = entered(*((each, path) for each in KINDS for path in ("/a", "/b")))
    told = watches.told(Event(kind, "/a"))
    assert set(told) == {who[each, "/a"] for each in TOLD[kind]}
    assert len(told) == len(TOLD[kind])
    assert not watches.told(Event(kind, "/a"))
    assert set(watches.told(Event(codec.DELETED, "/b"))) == {who[each, "/b"] for each in KINDS}


def test_the_last_one_that_goes_takes_the_servers_watch_with_it() -> None:
    watches, first, last = Watches(), Someone(), Someone()
    for one in (first, last):
        watches.add(DATA, "/a", one)
    assert watches.told(Event(codec.DELETED, "/a")) == [first, last]
    assert not watches
    for one in (first, last):
        watches.add(DATA, "/a", one)
    assert watches
    assert watches.drop(DATA, "/a", first) is None
    assert watches.drop(DATA, "/a", last) is not None
    assert not watches


@pytest.mark.parametrize(
    ("kind", "asked"), [(DATA, codec.OF_DATA), (EXISTENCE, codec.OF_DATA), (CHILDREN, codec.OF_CHILDREN)]
)
def test_a_server_is_asked_by_its_own_word_for_each_kind(kind: str, asked: int) -> None:
    watches, who = entered((kind, "/a"))
    removal = watches.drop(kind, "/a", who[kind, "/a"])
    assert removal is not None
    assert removal.body == codec.remove_watches("/a", asked).body


@pytest.mark.parametrize("order", list(permutations(KINDS)))
def test_of_data_and_of_existence_are_one_watch_at_the_server(order: tuple[str, ...]) -> None:
    """To remove it for one of them would make the other deaf."""
    watches, who = entered(*((kind, "/a") for kind in KINDS))
    removed = [kind for kind in order if watches.drop(kind, "/a", who[kind, "/a"]) is not None]
    both = [kind for kind in order if kind != CHILDREN]
    assert set(removed) == {CHILDREN, both[1]}


def test_whoever_does_not_watch_drops_nothing() -> None:
    watches, who = entered((DATA, "/a"))
    assert watches.drop(DATA, "/a", Someone()) is None
    assert watches.drop(CHILDREN, "/a", who[DATA, "/a"]) is None
    assert watches.drop(DATA, "/b", who[DATA, "/a"]) is None
    assert watches.told(Event(codec.CHANGED, "/a")) == [who[DATA, "/a"]]
    assert watches.drop(DATA, "/a", who[DATA, "/a"]) is None


def test_a_method_is_the_same_watcher_each_time_it_is_named() -> None:
    """Whoever watches by `self.moved` names another object when it drops that."""
    someone = Someone()
    watches = Watches()
    watches.add(DATA, "/a", someone.__call__)
    assert watches.drop(DATA, "/a", someone.__call__) is not None


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 900)), max_size=60), st.integers(0, 2**62))
def test_all_are_set_again_each_as_what_it_is(drawn: list[tuple[str, int]], zxid: int) -> None:
    wanted = {(kind, f"/{number}") for kind, number in drawn}
    watches, _ = entered(*wanted)
    found: list[tuple[str, str]] = []
    for request in watches.all_again(zxid):
        said, lists = paths_in(request)
        assert said == zxid
        found += [(kind, path) for kind, paths in zip(KINDS, lists, strict=True) for path in paths]
    assert len(found) == len(wanted)
    assert set(found) == wanted


def test_many_long_names_are_set_again_in_requests_that_a_server_reads() -> None:
    """As long as a path of ours can be, below a chroot that is short."""
    directory = path_of(prefix_of("/" * LONGEST_NAMESPACE) + "/" * LONGEST)
    wanted = {f"/chroot{directory}/_c_{number:036}-__READ__0000000000" for number in range(1500)}
    watches, _ = entered(*((DATA, path) for path in wanted))
    requests = watches.all_again(1)
    assert {path for request in requests for path in paths_in(request)[1][0]} == wanted
    assert max(len(codec.encode(codec.SET_WATCHES, request)) for request in requests) < SERVERS_LIMIT
