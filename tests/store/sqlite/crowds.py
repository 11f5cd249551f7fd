"""So many processes on one name, started at once, each taking the lock again and again.

crowds.py PATH COUNT SECONDS -> JSON: served, errors, rate (acquisitions/s while all of them compete: from when the last
process held for the first time until the first one ended), gap (the longest time without a holder)
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import dibs


def one(url: str, seconds: float) -> tuple[list[tuple[float, float]], list[str]]:
    """When it held, and what went wrong."""
    spans, errors, end = [], [], time.monotonic() + seconds
    with dibs.connect(url) as client:
        lock = client.lock("crowd")
        while time.monotonic() < end:
            try:
                with lock:
                    began = time.monotonic()
                    spans.append((began, time.monotonic()))
            except dibs.StoreUnavailable as error:
                errors.append(str(error))
    return spans, errors


def crowd(path: Path, count: int, seconds: float) -> dict[str, Any]:
    start, go = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if not child:
            os.close(go)
            os.read(start, 1)
            (path.parent / f"{number}.json").write_text(json.dumps(one(f"sqlite:///{path}", seconds)))
            os._exit(0)
        children.append(child)
    os.close(start)
    os.close(go)
    for child in children:
        os.waitpid(child, 0)
    said = [json.loads((path.parent / f"{number}.json").read_text()) for number in range(count)]
    spans = sorted(span for spans, _ in said for span in spans)
    last, gap = spans[0][0], 0.0
    for began, ended in spans:
        gap, last = max(gap, began - last), max(last, ended)
    from_, to = max(spans[0][0] for spans, _ in said if spans), min(spans[-1][0] for spans, _ in said if spans)
    return {
        "served": sum(bool(spans) for spans, _ in said),
        "errors": sorted({error for _, errors in said for error in errors}),
        "rate": sum(from_ <= began < to for began, _ in spans) / (to - from_),
        "gap": gap,
    }


if __name__ == "__main__":
    print(json.dumps(crowd(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
