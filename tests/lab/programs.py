"""Programs that the lab's tests need and a machine may not have."""

from __future__ import annotations

import os
import shutil

import pytest


def require(program: str) -> str:
    """Its path; without it the test is skipped, or fails where everything must be there."""
    found = shutil.which(program)
    if found is not None:
        return found
    if os.environ.get("DIBS_REQUIRE_SERVERS") == "1":
        pytest.fail(f"{program} is not installed")
    pytest.skip(f"{program} is not installed")
