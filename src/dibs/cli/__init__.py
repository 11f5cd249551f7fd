"""The command line: built on the public API only, as any other program that uses dibs."""
