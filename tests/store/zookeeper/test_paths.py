"""Names and paths: no two names share a path, each is read back from its path, and a real server accepts all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError

import dibs
from dibs.backends.zookeeper.paths import directory_of, levels, name_of, path_of, value_path
from dibs.core import names
from lab.curator import PATIENCE
from lab.servers import shared
from lab.servers.supervisor import Server
from process.children import until

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
"""Names as the store gets them, except paths."""


def is_accepted(path: str) -> bool:
    """ZooKeeper's own check of a path, over UTF-16 as Java has it."""
    parts = path.split("/")
    units = memoryview(path.encode("utf-16-le", "surrogatepass")).cast("H")
    bad = any(
        unit <= 0x1F or 0x7F <= unit <= 0x9F or 0xD800 <= unit <= 0xF8FF or unit >= 0xFFF0 for unit in units
    )  # fmt: skip
    return parts[0] == "" and not bad and not any(part in ("", ".", "..") for part in parts[1:])


@given(stored, stored, st.sampled_from(["cell", "latch", "fence", "written"]))
@example("a/b", "a%2Fb", "cell")
@example("a:b", "a:b:", "cell")
@example(".", "%2E", "cell")
@example("zookeeper", "%7Aookeeper", "cell")
@example("a:", "a", "cell")
def test_names_and_paths_are_one_to_one(one: str, other: str, space: str) -> None:
    path, value = path_of(one), value_path(space, one)
    assert (path == path_of(other)) == (value == value_path(space, other)) == (one == other)
    assert value not in (path_of(other), value_path("elsewhere", other)), "values are apart from queues"
    assert f"/%{space}/" in value
    assert name_of(path) == one
    assert name_of(value) is name_of(value.rpartition("/")[0]) is None
    assert is_accepted(path)
    assert is_accepted(value)
    assert path.split("/")[1] != "zookeeper"
    assert 1 <= path.count("/") <= 2
    found = levels(path)
    assert found[-1] == path, "its levels are made from the top"
    assert all(below.rpartition("/")[0] == above for above, below in pairwise(["", *found]))


@given(in_namespaces, st.integers(0, 600))
def test_names_with_a_prefix_are_in_its_directory(name: str, size: int) -> None:
    """A bare name is at the root."""
    prefix = name[: max(size, name.index(":") + 1)]
    assert path_of(name).rpartition("/")[0] == directory_of(prefix)
    bare = name.replace(":", "-").lstrip("/") or "x"
    assert path_of(bare).rpartition("/")[0] == directory_of(bare) == ""


def test_paths_are_taken_as_written_or_refused() -> None:
    for name in ("/a", "/a/b", "/orders/42/x", "/a%2Fb", "/zookeepers", "/a/zookeeper", "/a:b/c", "/\u65e5"):
        assert path_of(name) == name
        assert is_accepted(name)
    for name in ("/", "//a", "/a/", "/a//b", "/.", "/a/..", "/a/./b", "/zookeeper", "/zookeeper/quota", "/\U0001f512",
                 "/\ue000", "/\uffff"):  # fmt: skip
        with pytest.raises(dibs.BadName, match=r"is not a path for a lock.*without empty"):
            path_of(name)


@given(st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: f"/{text}"))
def test_any_path_is_refused_or_accepted_by_a_server(name: str) -> None:
    try:
        path = path_of(name)
    except dibs.BadName:
        assert not is_accepted(name) or name.split("/")[1] == "zookeeper"
    else:
        assert path == name
        assert is_accepted(name)


FOREIGN = st.sampled_from(["a", "b%2F", "%2E", "%cell", "%2f", "100%", "x:y", "zookeeper"])


@given(st.lists(FOREIGN, min_size=1, max_size=4))
def test_a_path_of_another_program_has_a_name_that_leads_back_or_none(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    name = name_of(path)
    if name is not None and parts[0] != "zookeeper":
        assert path_of(name) == path


@pytest.fixture
def below(kazoo: KazooClient) -> KazooClient:
    """Below a node of its own: the server is shared."""
    kazoo.ensure_path("/paths")
    kazoo.chroot = "/paths"
    return kazoo


def everything(kazoo: KazooClient, path: str = "") -> Iterator[str]:
    for child in kazoo.get_children(path or "/"):
        yield f"{path}/{child}"
        yield from everything(kazoo, f"{path}/{child}")


EDGES = [
    chr(code)
    for edge in (0x20, 0x7E, 0x9F, 0xD7FE, 0xE001, 0xF8FF, 0xFFEF, 0xFFFE, 0x10000, 0x10FFFF)
    for code in (edge - 1, edge, edge + 1)
    if not 0xD800 <= code <= 0xDFFF and code <= 0x10FFFF
]
"""The first and last characters that a server refuses, and their neighbours."""


def test_a_real_server_accepts_every_path(below: KazooClient) -> None:
    """Paths of queues and of values; it lists the same names."""
    wanted = {names.prefix_of("names") + name for name in (*ODD, *EDGES)}
    wanted |= {names.prefix_of(f"in{name}") + "x" for name in (*ODD, *EDGES)}
    wanted |= {f"{name}-bare" for name in (*ODD, *EDGES) if not name.startswith("/")}
    wanted |= {names.prefix_of(name) + "x" for name in (".", "..", "zookeeper")} | {".", "..", "zookeeper"}
    paths = {path for name in wanted for path in (path_of(name), value_path("cell", name))}
    for level in sorted({above for path in paths for above in levels(path)}, key=len):
        below.create_async(level)
    listed = set(everything(below))
    assert paths <= listed
    assert wanted <= {name_of(path) for path in listed}


def test_our_check_of_paths_agrees_with_a_real_server(below: KazooClient) -> None:
    for letter in EDGES:
        path = f"/edge{letter}"
        try:
            below.create(path)
        except BadArgumentsError:
            taken = False
        else:
            taken = True
        assert taken == is_accepted(path), ascii(path)


@pytest.mark.parametrize(("one", "other"), [("a", "/a"), ("x:y", "/x/y")])
def test_two_names_of_one_path_do_not_make_a_client_wait_for_itself(
    server: Server, tmp_path: Path, one: str, other: str
) -> None:
    with dibs.connect(shared.fresh(tmp_path), namespace="") as client:
        with client.lock(one, timeout=PATIENCE), pytest.raises(dibs.BadName, match="the same path as"):
            client.lock(other).acquire(timeout=PATIENCE)
        with client.rlock(other, timeout=PATIENCE), pytest.raises(dibs.BadName, match="one way"):
            client.rlock(one).acquire(timeout=PATIENCE)
        with pytest.raises(dibs.BadName, match="the same path as"):
            dibs.multi(client.lock(one), client.lock(other)).acquire(timeout=PATIENCE)
        until(lambda: not client.inspect(one).holders, what="the member that was taken is given back")
        for name in (one, other):
            with client.lock(name, timeout=PATIENCE):
                """One after the other."""


def test_a_lock_below_the_path_of_another(server: Server, tmp_path: Path) -> None:
    """Curator accepts both; the error of dibs names the node."""
    with dibs.connect(shared.fresh(tmp_path), namespace="") as client, client.lock("/orders/1", timeout=PATIENCE):
        with pytest.raises(dibs.Mismatch, match=r"holds '1'.*and no path below it"):
            client.lock("/orders").acquire(timeout=PATIENCE)
        with client.lock("/orders/2", timeout=PATIENCE) as hold:
            hold.check()
