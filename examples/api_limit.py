"""Fetch pages from a partner that allows five concurrent calls from all processes together.

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
"""The partner's limit. Every program must use the same number: another one raises Mismatch while calls run."""
WAIT = 30.0
CALL = 10.0
"""The timeout of a call, in seconds, and so of a permit."""


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
