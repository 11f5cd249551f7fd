"""A hostile process of the same user: forged messages to every socket beside a database, as fast as they go.

flood.py DIRECTORY ENOUGH [ID]   -> flooding, enough (after so many); at a queue on stdin: sent ACCEPTED REFUSED SECONDS

Without ID the messages are garbage and grants for claims that nobody has; with it, hints to look for that very claim.
"""

from __future__ import annotations

import random
import selectors
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from store.sqlite.places import Stranger


def messages(claim: bytes | None) -> list[bytes]:
    dice = random.Random(1)
    if claim is not None:
        return [claim + b"l"]
    return [dice.randbytes(16) + b"y" for _ in range(300)] + [dice.randbytes(dice.randrange(64)) for _ in range(100)]


def main(directory: Path, enough: int, claim: bytes | None) -> None:
    forged, accepted, refused = messages(claim), 0, 0
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ)
    print("flooding", flush=True)
    begun = time.monotonic()
    with Stranger(directory) as stranger:
        while not waiting.select(0):
            for name in [file.name for file in directory.glob("*.sock")]:
                for message in forged[:100]:
                    try:
                        done = stranger.send(name, message)
                    except OSError:
                        break
                    accepted, refused = accepted + done, refused + (not done)
            forged = forged[100:] + forged[:100]
            if enough and accepted + refused >= enough:
                enough = 0
                print("enough", flush=True)
    print("sent", accepted, refused, time.monotonic() - begun, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]) if len(sys.argv) > 3 else None)
