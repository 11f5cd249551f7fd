"""The minimal rights of a Redis user, read from the scripts, as the command that creates such a user.

Keys and channels are those of the default namespace; another namespace needs its own. INFO, CONFIG GET and CLUSTER INFO
of `doctor` and of a quorum's guard are not included: if they are refused, less is reported.
"""

from __future__ import annotations

import re

from dibs.backends.redis import scripts
from dibs.backends.redis.address import Address
from dibs.backends.redis.keys import literal
from dibs.info import printable

USER = "dibs"
_CALLED = re.compile(r"\b(?:call|in_parts)\('([A-Z]+)'")
"""Commands that a script needs. A PUBLISH by pcall may fail."""
_ASKED = frozenset({"eval", "evalsha", "time", "hmget", "get", "set", "scan"})
_HEARD = frozenset({"publish", "subscribe", "unsubscribe", "ping"})
_BY_TOPOLOGY = {
    "single": frozenset[str](),
    "sentinel": frozenset({"role"}),
    "cluster": frozenset({"asking", "cluster|slots"}),
}


def commands(address: Address) -> list[str]:
    """The commands that dibs uses, as an ACL names them."""
    made = [value for value in vars(scripts).values() if isinstance(value, scripts.Script)]
    found = {name.lower() for script in made for name in _CALLED.findall(script.text)}
    found |= _ASKED | _BY_TOPOLOGY[address.topology]
    if address.wake == "messages":
        found |= _HEARD
    if address.replicas:
        found.add("wait")
    return sorted(found)


def least(address: Address) -> str:
    """
    >>> from dibs.url import parse
    >>> least(Address.of(parse("redis://host"), prefix="app[1]/"))[:86]
    'ACL SETUSER dibs on >PASSWORD resetkeys ~app\\\\[1\\\\]/dibs:* resetchannels &app\\\\[1\\\\]/dibs:'
    """
    names = literal(printable(address.prefix)) + "dibs:*"
    channels = f"resetchannels &{names}" if address.wake == "messages" else "resetchannels"
    allowed = " ".join(f"+{command}" for command in commands(address))
    return f"ACL SETUSER {USER} on >PASSWORD resetkeys ~{names} {channels} -@all {allowed}"
