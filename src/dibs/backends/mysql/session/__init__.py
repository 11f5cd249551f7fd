"""Session mode: a claim is a user lock (GET_LOCK), held by a connection of its own."""
