"""Settings of the tests under this directory."""

from __future__ import annotations

from hypothesis import settings

# Runs share two cores with others, so an example's own time says nothing; and what a run finds must be found again.
settings.register_profile("dibs", deadline=None, database=None, print_blob=True)
settings.load_profile("dibs")
