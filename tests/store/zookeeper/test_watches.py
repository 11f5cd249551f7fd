"""Events reach their watchers once; watches are removed at the server, and set again on the next connection."""

from __future__ import annotations

import struct
from itertools import permutations

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
    def __call__(self, event: Event) -> None:
        raise AssertionError("Watches calls no watcher")


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


def test_an_event_is_for_the_watchers_of_that_path_once() -> None:
    for kind, wanted in TOLD.items():
        watches, who = entered(*((each, path) for each in KINDS for path in ("/a", "/b")))
        told = watches.told(Event(kind, "/a"))
        assert set(told) == {who[each, "/a"] for each in wanted}
        assert len(told) == len(wanted)
        assert not watches.told(Event(kind, "/a"))
        assert set(watches.told(Event(codec.DELETED, "/b"))) == {who[each, "/b"] for each in KINDS}


def test_the_last_watcher_that_leaves_removes_the_servers_watch() -> None:
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


def test_a_removal_names_the_kind_as_the_server_does() -> None:
    for kind, asked in ((DATA, codec.OF_DATA), (EXISTENCE, codec.OF_DATA), (CHILDREN, codec.OF_CHILDREN)):
        watches, who = entered((kind, "/a"))
        removal = watches.drop(kind, "/a", who[kind, "/a"])
        assert removal is not None
        assert removal.body == codec.remove_watches("/a", asked).body


def test_watches_of_data_and_of_existence_are_one_at_the_server() -> None:
    """Removing it for one of them would also remove it for the other."""
    for order in permutations(KINDS):
        watches, who = entered(*((kind, "/a") for kind in KINDS))
        removed = [kind for kind in order if watches.drop(kind, "/a", who[kind, "/a"]) is not None]
        both = [kind for kind in order if kind != CHILDREN]
        assert set(removed) == {CHILDREN, both[1]}


def test_a_stranger_drops_no_watch() -> None:
    watches, who = entered((DATA, "/a"))
    assert watches.drop(DATA, "/a", Someone()) is None
    assert watches.drop(CHILDREN, "/a", who[DATA, "/a"]) is None
    assert watches.drop(DATA, "/b", who[DATA, "/a"]) is None
    assert watches.told(Event(codec.CHANGED, "/a")) == [who[DATA, "/a"]]
    assert watches.drop(DATA, "/a", who[DATA, "/a"]) is None
    someone = Someone()
    watches.add(DATA, "/a", someone.__call__)
    assert watches.drop(DATA, "/a", someone.__call__) is not None, "a bound method is a new object at each access"


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
    """The longest paths that dibs makes."""
    directory = path_of(prefix_of("/" * LONGEST_NAMESPACE) + "/" * LONGEST)
    wanted = {f"/chroot{directory}/_c_{number:036}-__READ__0000000000" for number in range(1500)}
    watches, _ = entered(*((DATA, path) for path in wanted))
    requests = watches.all_again(1)
    assert {path for request in requests for path in paths_in(request)[1][0]} == wanted
    assert max(len(codec.encode(codec.SET_WATCHES, request)) for request in requests) < SERVERS_LIMIT
