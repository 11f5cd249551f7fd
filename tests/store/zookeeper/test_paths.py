"""Names and paths: no two names meet, each comes back from its path, and a real server takes every one of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError

import dibs
from dibs.backends.zookeeper.paths import directory_of, levels, name_of, path_of, value_path
from dibs.core import names
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from store.zookeeper.faulty import operator

ODD = [
    "a", "invoice:42", "a/b", "/", "//", "a%2Fb", "%", "%2F", "%25", "%cell", "%2f", ".", "..", "...", "zookeeper",
    "zookeeper:zookeeper", "ZooKeeper", "%7Aookeeper", "locks", "leases", ":", "::", ":a", "a:", "a::b", "a:b:c",
    "caf\u00e9", "\u65e5\u672c", "\U0001f512", "a\U0001f512b", "\ud7ff", "\ue000", "\uf8ff", "\uf900", "\uffef",
    "\ufff0", "\ufffd", "\uffff", "\U0010ffff", "\u00a0", "\u200f", " ", "a b", "lock-0000000001", "#17", "\\",
    "_c_x-lock-0000000001", "'", '"', "*", "a" * 500,
]  # fmt: skip
"""Reserved, half-encoded, beside the surrogates, beyond what UTF-16 writes in one piece."""
PIECES = st.sampled_from(
    [*"%/.:aA7EF2", "..", "zookeeper", "%2E", "%7A", "\U0001f512", "\uf8ff", "\ufff0", "\ud7ff", "\u00e9"]
)
letters = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029")
ours = st.one_of(
    st.sampled_from(ODD), st.lists(PIECES, min_size=1, max_size=8).map("".join), st.text(letters, min_size=1)
)
bare = ours.filter(lambda name: not name.startswith("/"))
in_namespaces = st.builds(lambda space, name: names.prefix_of(space) + name, ours, ours)
stored = st.one_of(bare, in_namespaces)
"""Names as the store is given them, but for those that are paths."""


def is_one_that_a_server_takes(path: str) -> bool:
    """ZooKeeper's own check of a path, over UTF-16 as Java has it."""
    parts = path.split("/")
    units = memoryview(path.encode("utf-16-le", "surrogatepass")).cast("H")
    bad = any(
        unit <= 0x1F or 0x7F <= unit <= 0x9F or 0xD800 <= unit <= 0xF8FF or unit >= 0xFFF0 for unit in units
    )  # fmt: skip
    return parts[0] == "" and not bad and not any(part in ("", ".", "..") for part in parts[1:])


@given(stored, stored)
@example("a/b", "a%2Fb")
@example("a:b", "a:b:")
@example(".", "%2E")
@example("zookeeper", "%7Aookeeper")
@example("a:", "a")
def test_no_two_names_meet(one: str, other: str) -> None:
    assert (path_of(one) == path_of(other)) == (one == other)
    assert (value_path("cell", one) == value_path("cell", other)) == (one == other)


@given(stored)
def test_a_name_comes_back_from_its_path(name: str) -> None:
    assert name_of(path_of(name)) == name


@given(stored)
def test_a_name_becomes_a_path_that_a_server_takes(name: str) -> None:
    path = path_of(name)
    assert is_one_that_a_server_takes(path)
    assert 1 <= path.count("/") <= 2
    assert not path.startswith("/zookeeper/")
    assert path != "/zookeeper"


@given(stored, st.sampled_from(["cell", "latch", "fence", "written"]))
def test_what_is_no_line_stands_where_no_line_can(name: str, space: str) -> None:
    path = value_path(space, name)
    assert is_one_that_a_server_takes(path)
    assert f"/%{space}/" in path
    assert name_of(path) is None
    assert name_of(path.rpartition("/")[0]) is None


@given(stored, stored)
def test_a_value_and_a_line_never_meet(one: str, other: str) -> None:
    assert value_path("cell", one) not in (path_of(other), value_path("fence", other))


@given(in_namespaces, st.integers(0, 600))
def test_all_names_that_begin_so_stand_where_they_are_looked_for(name: str, size: int) -> None:
    prefix = name[: max(size, name.index(":") + 1)]
    assert path_of(name).rpartition("/")[0] == directory_of(prefix)


@given(bare.filter(lambda name: not name.partition(":")[1]))
def test_a_bare_name_stands_at_the_root(name: str) -> None:
    assert path_of(name).rpartition("/")[0] == directory_of(name) == ""


@pytest.mark.parametrize(
    "name", ["/a", "/a/b", "/orders/42/x", "/a%2Fb", "/zookeepers", "/a/zookeeper", "/a:b/c", "/\u65e5"]
)
def test_a_path_is_taken_as_written(name: str) -> None:
    assert path_of(name) == name
    assert is_one_that_a_server_takes(name)


@pytest.mark.parametrize(
    "name",
    [
        "/", "//a", "/a/", "/a//b", "/.", "/a/..", "/a/./b", "/zookeeper", "/zookeeper/quota", "/\U0001f512", "/\ue000",
        "/\uffff",
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_is_refused_before_anything_is_asked(name: str) -> None:
    with pytest.raises(dibs.BadName, match=r"is no path for a line.*no empty part"):
        path_of(name)


@given(st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: f"/{text}"))
def test_a_path_as_written_is_refused_or_one_that_a_server_takes(name: str) -> None:
    try:
        path = path_of(name)
    except dibs.BadName:
        assert not is_one_that_a_server_takes(name) or name.split("/")[1] == "zookeeper"
    else:
        assert path == name
        assert is_one_that_a_server_takes(name)


FOREIGN = st.sampled_from(["a", "b%2F", "%2E", "%cell", "%2f", "100%", "x:y", "zookeeper"])


@given(st.lists(FOREIGN, min_size=1, max_size=4))
def test_a_path_of_others_has_a_name_that_leads_back_or_none(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    name = name_of(path)
    if name is not None and parts[0] != "zookeeper":
        assert path_of(name) == path


@given(stored)
def test_the_levels_of_a_path_are_made_from_the_top(name: str) -> None:
    path = path_of(name)
    found = levels(path)
    assert found[-1] == path
    assert all(below.rpartition("/")[0] == above for above, below in pairwise(found))
    assert found[0].count("/") == 1


# What a real server says.


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper()) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[KazooClient]:
    """No longer than a test: its threads draw random numbers, which hypothesis takes for the strategies' doing."""
    with operator(server) as client:
        yield client


def everything(client: KazooClient, path: str = "") -> Iterator[str]:
    for child in client.get_children(path or "/"):
        yield f"{path}/{child}"
        yield from everything(client, f"{path}/{child}")


EDGES = [
    chr(code)
    for edge in (0x20, 0x7E, 0x9F, 0xD7FE, 0xE001, 0xF8FF, 0xFFEF, 0xFFFE, 0x10000, 0x10FFFF)
    for code in (edge - 1, edge, edge + 1)
    if not 0xD800 <= code <= 0xDFFF and code <= 0x10FFFF
]
"""Of what a server refuses."""


def test_a_real_server_takes_every_one_of_them(client: KazooClient) -> None:
    """Lines and values; and what it lists are the same names again."""
    wanted = {names.prefix_of("names") + name for name in (*ODD, *EDGES)}
    wanted |= {names.prefix_of(f"in{name}") + "x" for name in (*ODD, *EDGES)}
    wanted |= {f"{name}-bare" for name in (*ODD, *EDGES) if not name.startswith("/")}
    wanted |= {names.prefix_of(name) + "x" for name in (".", "..", "zookeeper")} | {".", "..", "zookeeper"}
    paths = {path for name in wanted for path in (path_of(name), value_path("cell", name))}
    for level in sorted({above for path in paths for above in levels(path)}, key=len):
        client.create_async(level)
    listed = set(everything(client))
    assert paths <= listed
    assert wanted <= {name_of(path) for path in listed}


def test_what_we_hold_for_possible_is_what_a_real_server_does(client: KazooClient) -> None:
    for letter in EDGES:
        path = f"/edge{letter}"
        try:
            client.create(path)
        except BadArgumentsError:
            taken = False
        else:
            taken = True
        assert taken == is_one_that_a_server_takes(path), ascii(path)
