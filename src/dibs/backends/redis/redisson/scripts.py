"""The scripts in lua/. A comment line with a file name inserts that file."""

from __future__ import annotations

import re
from importlib.resources import files

from dibs.backends.redis.scripts import Script

_PART = re.compile(r"^-- \((\w+)\.lua\)\n", re.MULTILINE)


def _read(name: str) -> str:
    text = files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    return _PART.sub(lambda found: _read(found[1]), text)


def _script(name: str, short: type = list) -> Script:
    return Script(f"redisson/{name}", _read(name), short)


MUTEX_JOIN, MUTEX_LEAVE = _script("mutex_join", bytes), _script("mutex_leave", int)
MUTEX_AMEND, MUTEX_RENEW = _script("mutex_amend"), _script("mutex_renew")
FAIR_JOIN, FAIR_LEAVE = _script("fair_join", bytes), _script("fair_leave", int)
RW_JOIN, RW_LEAVE = _script("rw_join", bytes), _script("rw_leave", int)
RW_AMEND, RW_RENEW = _script("rw_amend"), _script("rw_renew")
SEMAPHORE_JOIN, SEMAPHORE_LEAVE = _script("semaphore_join", bytes), _script("semaphore_leave", int)
PERMITS_JOIN, PERMITS_LEAVE = _script("permits_join", bytes), _script("permits_leave", int)
LATCH_ARM, LATCH_COUNT_DOWN = _script("latch_arm"), _script("latch_count_down")
LATCH_COUNT = _script("latch_count")
LOOK, EVICT = _script("look"), _script("evict")
