"""The locks themselves: no I/O, no threads, no clock of its own."""
