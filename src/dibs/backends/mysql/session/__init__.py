"""Session mode: a claim is a user lock (GET_LOCK) of a connection of its own. Call paths: see mysql/__init__.py."""
