"""The pytest plugin of dibs: the options of the contract suite, and the fixtures for applications.

pytest loads it in every run wherever dibs is installed. That imports the sync API (about 60 ms). The kit, the suite and
the async API are imported when they are used.
"""

from __future__ import annotations

import pytest

from dibs.testing.fixtures import dibs_aio_client, dibs_client

__all__ = ["dibs_aio_client", "dibs_client", "pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("dibs").addoption(
        "--dibs-store",
        action="append",
        default=[],
        metavar="[NAME=]MODULE:FUNCTION",
        help="store to test with dibs.testing.contract: FUNCTION(tmp_path) returns the URL of an empty store; or "
        "memory or sqlite (default: these two); may be repeated",
    )
    parser.getgroup("dibs").addoption(
        "--dibs-part",
        action="append",
        default=[],
        metavar="[NAME=]PART",
        help="part of dibs.testing.contract to run for this store, or for all: whole (the default), store (without "
        "tests of the core), verbs (the operations of a store) or lock (plain locks); may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "dibs_on(*apis): for dibs.testing: only for these APIs")
    config.addinivalue_line("markers", "dibs_needs(*capabilities): for dibs.testing: only stores that can do this")
    config.addinivalue_line("markers", "dibs_without(*capabilities): for dibs.testing: only stores that cannot")
    config.addinivalue_line("markers", "dibs_above_the_store: for dibs.testing: tests the core, whatever the store")
    config.addinivalue_line("markers", "dibs_every_form: for dibs.testing: runs for each form of a store")
    config.addinivalue_line("markers", "dibs_timed: for dibs.testing: depends on real time, but for the memory store")
