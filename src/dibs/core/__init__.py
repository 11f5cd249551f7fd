"""The locks, without I/O: stores, threads and clocks come in through protocols."""
