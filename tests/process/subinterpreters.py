"""subinterpreters.py URL: a subinterpreter that used a client ends right after the client was closed, some times."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

ROUNDS = 5
USES = """
import sys
sys.path[:] = {path!r}
import dibs
with dibs.connect({url!r}) as client:
    with client.lock("a"):
        pass
    hold = client.lock("b").acquire()
"""

interpreters: Any = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
for _ in range(ROUNDS):
    one = interpreters.create("legacy") if sys.version_info >= (3, 13) else interpreters.create(isolated=False)
    failed = interpreters.run_string(one, USES.format(path=sys.path, url=sys.argv[1]))
    assert failed is None, failed
    interpreters.destroy(one)
print("ended")
