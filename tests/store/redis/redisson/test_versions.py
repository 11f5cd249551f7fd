"""Older versions of Redisson: the table in docs/stores/redisson.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.redisson import NEWEST, PATIENCE, VERSIONS, Redisson
from lab.servers import ports, programs, shared_redis
from lab.servers.shared import unique
from store.redis.redisson.peers import KINDS, Kind, Raw, take_turns
from store.sides import APIS, Python

pytestmark = [pytest.mark.gate, pytest.mark.slow, pytest.mark.xdist_group("redisson")]


@pytest.fixture(scope="session")
def prefix() -> str:
    """None: before 3.52 the queue of a fair lock had none."""
    return ""


@pytest.fixture
def url() -> str:
    return f"{shared_redis.redis().url()}?layout=redisson"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"{unique()}-{request.node.name}"


OLDER = [version for version in VERSIONS if version != NEWEST]


@pytest.fixture(scope="module", params=OLDER)
def older(request: pytest.FixtureRequest) -> Iterator[Redisson]:
    programs.require("redis", "redisson")
    where = f"{ports.HOST}:{shared_redis.redis().port}"
    with Redisson(where, version=request.param, watchdog=6.0, timeout=PATIENCE) as java:
        yield java


@pytest.mark.parametrize(("side", "kind"), [(APIS[n % 2], kind) for n, kind in enumerate(KINDS)], indirect=["side"])
def test_each_waits_for_the_other(older: Redisson, side: Python, raw: Raw, name: str, kind: Kind) -> None:
    take_turns(older, side, raw, name, kind, side.client())
