"""The command line `dibs`. It uses the sync API, like any other program."""
