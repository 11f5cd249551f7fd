"""Options and hosts in the URLs of several stores.

An option is a keyword of `connect` or is in the query of the URL, not both. Error texts never repeat a value: a secret
may have been written for the wrong option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import Any

from dibs.url import Url

Check = Callable[[str, str, object], object]
"""Takes the shown URL, the option as it is written (`acl=`) and its value. Gives the parsed value, or raises."""
_KEYWORDS = frozenset({"lease", "retry", "namespace", "owner", "info"})
"""Options of `connect` for every store, which are not allowed in a URL."""
_PLAIN_WORD = re.compile(r"[A-Za-z_-]{1,24}")
_HOST_NAME = re.compile(r"(?!.{254})(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")


def parse(
    shown: str,
    query: tuple[tuple[str, str], ...],
    keywords: Mapping[str, object],
    known: Mapping[str, Check],
    objects: Mapping[str, Check] | None = None,
) -> dict[str, Any]:
    """Merge the options of the query and the keywords. A keyword that is None is ignored. `objects`: options that can
    only be keywords."""
    objects = objects or {}
    found: dict[str, Any] = {}
    for option, value in query:
        if option in objects:
            raise ValueError(f"{shown}: {option}= is an object: pass it to connect() as a keyword")
        if option in _KEYWORDS:
            raise ValueError(f"{shown}: {option}= does not go into the URL: pass it to connect() as a keyword")
        if option not in known:
            named = value and _PLAIN_WORD.fullmatch(option)
            unknown = f"no option {option}= goes into the URL" if named else "the URL has an unknown option"
            raise ValueError(f"{shown}: {unknown}; there are {_listed(known)}")
        if option in found:
            raise ValueError(f"{shown}: {option}= is given twice in the URL")
        found[option] = known[option](shown, f"{option}=", value)
    every = {**known, **objects}
    for option, given in keywords.items():
        if option not in every:
            scheme = shown.partition("://")[0]
            raise TypeError(f"{scheme}:// has no store option {option!r}; there are {_listed(every)}")
        if given is None:
            continue
        if option in found:
            raise ValueError(f"{shown}: {option}= is given twice, in the URL and as a keyword")
        found[option] = every[option](shown, f"{option}=", given)
    return found


def word(*words: str) -> Check:
    def check(shown: str, option: str, value: object) -> object:
        if value not in words:
            known = " or ".join(f'"{word}"' for word in words)
            raise ValueError(f"{shown}: {option} must be {known}")
        return value

    return check


def file(shown: str, option: str, value: object) -> str:
    path = fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(path, str):
        raise TypeError(f"{option} must be the path of a file, not {type(value).__name__}")
    if not path or "\0" in path:
        raise ValueError(f"{shown}: {option} must be the path of a file")
    return path


def number(shown: str, option: str, value: object) -> int:
    """A whole number, zero or more; digits in a URL."""
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
    if digits or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return int(value)  # type: ignore[call-overload,no-any-return]  # a str of digits or an int
    raise ValueError(f"{shown}: {option} must be a whole number, zero or more")


def text(shown: str, option: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{option} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{shown}: {option} is empty")
    if not encodes(value):
        raise ValueError(f"{shown}: {option} must be UTF-8")
    return value


def encodes(value: str) -> bool:
    """Whether it has no lone surrogates, which stand for command-line bytes that are not UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def servers(url: Url, port: int, example: str) -> tuple[tuple[str, int], ...]:
    """Every host with its port. `example`: the rest of a valid URL, for the error text."""
    if not url.hosts:
        raise ValueError(f"{url.shown}: the URL names no server: {url.scheme}://{example}")
    for host, _ in url.hosts:
        if ":" not in host and not _HOST_NAME.fullmatch(host):
            raise ValueError(
                f"{url.shown}: {host!r} is not a host name (write a name with other characters than ASCII as xn--...)"
            )
    return tuple((host, port if given is None else given) for host, given in url.hosts)


def _listed(known: Mapping[str, Check]) -> str:
    return ", ".join(f"{option}=" for option in known)
