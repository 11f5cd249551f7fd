"""Use of the caller's own SQL connections."""
