"""The command line: built on the public faces only, as any other program that uses dibs."""
