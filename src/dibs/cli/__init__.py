"""The command line `dibs`. It uses only the public API, like any other program."""
