"""The contract suite: tests that every store of dibs must pass, through both APIs."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in ("harness", "seats", "stores", "worlds")))
