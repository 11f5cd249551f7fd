"""A process that takes a lock and keeps it: joiner.py URL NAME"""

from __future__ import annotations

import sys

import dibs

if __name__ == "__main__":
    url, name = sys.argv[1:]
    with dibs.connect(url).lock(name):
        print("held", flush=True)
        sys.stdin.read()
