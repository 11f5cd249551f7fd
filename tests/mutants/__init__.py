"""Mutants: does a test fail when a safeguard is taken out? `python -m mutants --help`, with tests/ on the path."""
