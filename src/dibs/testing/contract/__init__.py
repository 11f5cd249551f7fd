"""The behavioural suite: what every store of dibs does, through both APIs. A store that passes it is a dibs store."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in ("harness", "seats", "stores", "worlds")))
