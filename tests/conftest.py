"""Settings of the tests under this directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Runs share two cores with others, so an example's own time says nothing. scripts/test tries the same examples every
# time, so that it fails because of what was changed; `scripts/soak examples` looks for new ones.
settings.register_profile("same", deadline=None, database=None, derandomize=True, max_examples=60)
settings.register_profile("new", deadline=None, database=None, print_blob=True, max_examples=1000)
settings.load_profile("same")

_LONGEST_ID = 600


def pytest_make_parametrize_id(val: object) -> str | None:
    """The name of a test stands in the environment of every process that it starts: a megabyte leaves no room there."""
    return f"{val[:20]!r} and so on" if isinstance(val, str | bytes) and len(val) > _LONGEST_ID else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all tests that use a module's fixtures, mostly servers: each starts once (--dist loadgroup)."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            made = [fixtures[-1] for fixtures in item._fixtureinfo.name2fixturedefs.values()]
            if any(fixture.scope == "module" and not fixture.argname.startswith("_") for fixture in made):
                item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads take turns after every few lines."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
