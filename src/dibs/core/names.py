"""Valid names, and how a namespace and a name become one name in the store.

The encoding is injective: a colon in the namespace is escaped, so the first colon always ends the namespace. A slash is
escaped, too. The empty namespace leaves names as written, to share queues with other programs; only there can a name
in the store begin with a slash. A stripe has a name of the same namespace: stripe 17 of "stock" is "stock#17".
"""

from __future__ import annotations

import re

from dibs.errors import BadName

LONGEST = 512
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_STEP = "give a name of 1-512 bytes of UTF-8, not blank, without control characters"


def check(name: object) -> str:
    """Return a valid name, or raise BadName, before any I/O.

    >>> check("invoice:42")
    'invoice:42'
    """
    if not isinstance(name, str):
        raise BadName(f"a name must be a str, not {type(name).__name__}", step=_STEP)
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadName(f"the name {name[:80]!a} contains a lone surrogate", step=_STEP) from None
    if size > LONGEST:
        raise BadName(f"the name {name[:40]!a}... is {size} bytes long", step=_STEP)
    if _CONTROL.search(name):
        raise BadName(f"the name {name!a} contains a control character", step=_STEP)
    if not name.strip():
        raise BadName("the name is blank" if name else "the name is empty", step=_STEP)
    return name


def prefix_of(namespace: str) -> str:
    """The prefix of every name of a namespace.

    >>> prefix_of("dibs"), prefix_of("a:b"), prefix_of("/a"), prefix_of("")
    ('dibs:', 'a%3Ab:', '%2Fa:', '')
    """
    if not namespace:
        return ""
    return namespace.replace("%", "%25").replace(":", "%3A").replace("/", "%2F") + ":"


def stripe(name: str, index: int) -> str:
    return f"{name}#{index}"
