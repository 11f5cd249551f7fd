"""The meaning of a server's refusal: ask another server, ask again later, or give up. A refusal never grants.

| error of the server                                            | reaction                                         |
|----------------------------------------------------------------|--------------------------------------------------|
| NOSCRIPT                                                       | send the script itself                           |
| MOVED, ASK                                                     | ask the server it names                          |
| READONLY, MASTERDOWN                                           | find the primary, and ask again                  |
| LOADING, BUSY, TRYAGAIN, CLUSTERDOWN, NOREPLICAS, MISCONF, OOM | ask again until the deadline                     |
| anything else: NOPERM, NOAUTH, WRONGTYPE, a damaged record ... | raise it: asking again would not help            |
"""

from __future__ import annotations

import re

from dibs.backends.common import executor
from dibs.errors import Mismatch, StoreError, StoreUnavailable
from dibs.info import printable

_LONGEST = 200
ELSEWHERE = frozenset({"READONLY", "MASTERDOWN"})
REDIRECTIONS = frozenset({"MOVED", "ASK"})
LATER = ELSEWHERE | {"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "OOM"}
_STEPS = {
    "LOADING": "wait until the server has loaded its data",
    "BUSY": "find the script that keeps the server busy; SCRIPT KILL ends it",
    "MASTERDOWN": "check the replication of this server",
    "READONLY": "give the primary, or use redis+sentinel://",
    "CLUSTERDOWN": "check CLUSTER INFO on its nodes",
    "TRYAGAIN": "try again once the slot has been moved",
    "NOREPLICAS": "check its replicas and min-replicas-to-write",
    "MISCONF": "check why the server cannot save to its disk",
    "OOM": "give the server more memory, or check maxmemory and what fills it",
    "NOPERM": "give this user the rights that `dibs doctor` prints",
    "NOAUTH": "put user and password into the URL",
    "WRONGPASS": "check user and password",
    "WRONGTYPE": "find the program that writes there, and stop it",
}
_DENIED = ("The user executing the script", " NOPERM ")
"""How a missing right inside a script is reported, in Redis 7 and before."""
_WRAPPED = re.compile(r"user_script: ?\d+: -?([A-Z]{2,}) ")
"""How servers before Redis 7 report the error code of a command inside a script."""
_DAMAGED = "the record is damaged, or dibs did not write it"


class Refusal(executor.Refusal):
    """An error reply of the server."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text.partition(", with args")[0]  # the rest repeats what we sent, which may be secret
        self.code = text.partition(" ")[0]
        if self.code == "ERR" and (wrapped := _WRAPPED.search(text)):
            self.code = wrapped[1]

    def endpoint(self) -> tuple[str, int] | None:
        """The server that MOVED or ASK names (`MOVED 3999 host:port`); without a host, the one that was asked."""
        host, _, port = self.text.split(" ")[-1].rpartition(":")
        return (host, int(port)) if port.isdigit() else None


def final(refusal: Refusal, key: bytes) -> StoreError | Mismatch:
    """The error for the caller: what was refused, and what to do about it."""
    text, shown = printable(refusal.text[:_LONGEST]), printable(key.decode(errors="replace"))
    if refusal.code == "NOPERM" or any(words in refusal.text for words in _DENIED):
        return StoreError(f"the server refused: {text}", step=_STEPS["NOPERM"])
    if refusal.code == "WRONGTYPE" or (refusal.code == "ERR" and "user_script" in refusal.text):
        return StoreError(f"{_DAMAGED}, in the key {shown}: {text}", step=_STEPS["WRONGTYPE"])
    if refusal.code == "DIBSLAYOUT" and refusal.text.endswith("foreign"):
        return Mismatch(f"another program uses the key {shown}", step="choose another name, or another prefix=")
    if refusal.code == "DIBSLAYOUT":
        other = "an older" if refusal.text.endswith("older") else "a newer"
        return Mismatch(
            f"{other} version of dibs uses the key {shown}",
            step="use one version; docs/stores/redis.md says how to change over",
        )
    step = _STEPS.get(refusal.code, "check the server's log")
    kind = StoreUnavailable if refusal.code in LATER or refusal.code in REDIRECTIONS else StoreError
    return kind(f"the server refused: {text}", step=step)


class RefusedOne(StoreUnavailable):
    """One of many requests was refused for good; the error must not be raised for the others."""


def unavailable(error: StoreError | Mismatch) -> StoreUnavailable:
    """The outcome of one of many requests that were sent together."""
    return error if isinstance(error, StoreUnavailable) else RefusedOne(error.what, step=error.step)


def strange() -> StoreError:
    """The error for a reply of an unexpected shape."""
    return StoreError("the answer is not one of a dibs script", step="check that this is the right server")
