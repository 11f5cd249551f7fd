"""The locks and primitives that a client makes, without I/O."""
