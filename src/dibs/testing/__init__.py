"""For tests: the behavioural suite of a store, and fixtures for applications."""
