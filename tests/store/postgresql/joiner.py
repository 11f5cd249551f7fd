"""A process that takes a lock and keeps it: joiner.py URL NAME [LEASE]"""

from __future__ import annotations

import sys

import dibs

if __name__ == "__main__":
    url, name, *lease = sys.argv[1:]
    with dibs.connect(url, lease=float(lease[0]) if lease else 30.0).lock(name):
        print("held", flush=True)
        sys.stdin.read()
