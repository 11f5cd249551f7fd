"""Many processes that all come to a store for the first time at the same instant: newcomers.py URL COUNT

Prints the token that each of them got.
"""

from __future__ import annotations

import os
import sys

import dibs


def main(url: str, count: int) -> int:
    start, go = os.pipe()
    children = []
    for _ in range(count):
        told, tells = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(go)
            os.read(start, 1)
            with dibs.connect(url, retry=100.0) as client, client.lock("first", timeout=100) as hold:
                os.write(tells, b"%d" % hold.token)
            os._exit(0)
        os.close(tells)
        children.append((pid, told))
    os.close(go)  # all begin now
    failed = 0
    for pid, told in children:
        print(os.read(told, 100).decode())
        failed += os.waitpid(pid, 0)[1] != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
