"""A process that takes and gives back what the lines on its stdin say, with the public API only.

holder.py URL OPTIONS        OPTIONS: of dibs.connect, as JSON

Each line is JSON: [DO, KEY, ...]; what it says begins with the KEY. To "ask" is to stand in line meanwhile.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import dibs


def say(*words: object) -> None:
    print(*words, flush=True)


class Holder:
    def __init__(self, url: str, **options: Any) -> None:
        self.client = dibs.connect(url, **options)
        self.holds: dict[str, dibs.Hold] = {}

    def lock(self, kind: str, name: str, size: int | None, options: dict[str, Any]) -> Any:
        if kind in ("read", "write"):
            return getattr(self.client.rwlock(name, **options), kind)
        if kind == "lead":
            return self.client.election(name, **options).lead()
        if kind == "stripe":
            return self.client.striped(name, size or 1, **options).at("key")
        return getattr(self.client, kind)(name, *([] if size is None else [size]), **options)

    def take(self, key: str, kind: str, name: str, size: int | None, options: dict[str, Any]) -> None:
        """-> KEY took TOKEN"""
        permits = [options.pop("permits")] if "permits" in options else []
        hold = self.lock(kind, name, size, options).acquire(*permits, timeout=30)
        assert hold is not None
        self.holds[key] = hold
        say(key, "took", hold.token)

    def take_many(self, key: str, prefix: str, count: int) -> None:
        """-> KEY took many"""
        for number in range(count):
            self.holds[f"{key} {number}"] = self.client.lock(f"{prefix}{number:05}").acquire()
        say(key, "took many")

    def ask(self, key: str, *words: Any) -> None:
        """-> KEY took TOKEN, some time"""
        threading.Thread(target=self.take, args=(key, *words), name=key, daemon=True).start()

    def give(self, key: str) -> None:
        """-> KEY gave"""
        self.holds.pop(key).release()
        say(key, "gave")

    def downgrade(self, key: str) -> None:
        """-> KEY reads"""
        self.holds[key].downgrade()
        say(key, "reads")

    def lose(self, key: str) -> None:
        """-> KEY lost, once it is told so"""
        assert self.holds[key].lost.wait(30)
        say(key, "lost")


if __name__ == "__main__":
    holder = Holder(sys.argv[1], **json.loads(sys.argv[2]))
    say("ready")
    for line in sys.stdin:
        do, *rest = json.loads(line)
        getattr(holder, do)(*rest)
