"""Fetch pages from a partner who allows five calls at once from all of us together.

api_limit.py URL...
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.error import URLError
from urllib.request import urlopen

import dibs

AT_ONCE = 5
"""The partner's limit. Every program must say the same number: another one is refused while calls are under way."""
WAIT = 30.0
CALL = 10.0
"""No call takes longer, so no permit is kept longer."""


def fetch(client: dibs.Client, url: str) -> str:
    try:
        with (
            client.semaphore("partner-api", AT_ONCE, timeout=WAIT, info={"url": url}),
            urlopen(url, timeout=CALL) as page,
        ):
            return f"{page.status} {url}"
    except dibs.AcquireTimeout as busy:
        return f"busy {url}: {busy}"
    except (URLError, TimeoutError) as error:
        return f"failed {url}: {error}"


def main() -> None:
    urls = sys.argv[1:]
    with dibs.connect() as client, ThreadPoolExecutor(max_workers=2 * AT_ONCE) as pool:
        results = list(pool.map(partial(fetch, client), urls))
    print(*results, sep="\n")
    sys.exit(0 if all(result.startswith("200 ") for result in results) else 1)


if __name__ == "__main__":
    main()
