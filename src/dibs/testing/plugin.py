"""The pytest plugin of dibs: `--dibs-store` for the behavioural suite, and the fixtures for applications.

pytest loads it in every run in an environment that dibs is installed in. The blocking face comes with the package, in
some 60 ms; the kit, the suite and the asyncio face are imported when they are used.
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
        help="a store that dibs.testing.contract is to test: FUNCTION(tmp_path) gives the URL of a fresh one; also "
        "memory or sqlite, which are tested without this option; may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "dibs_on(*faces): for dibs.testing: only through these faces")
    config.addinivalue_line("markers", "dibs_needs(*capabilities): for dibs.testing: only stores that can do this")
    config.addinivalue_line("markers", "dibs_without(*capabilities): for dibs.testing: only stores that cannot")
