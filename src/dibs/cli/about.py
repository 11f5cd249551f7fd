"""What others are shown of a command: its words, shortened, without what looks like a secret.

Everybody who can read the store sees it, as everybody on a machine sees a command line. What looks like a password is
left out by its looks alone, rather too much of it than too little: `--info command=...` says something else instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from shlex import quote

_LONGEST = 200
_READ = 4000
"""How much of a word is looked at: enough to see the secret that what is shown may begin with."""
_TELLING = r"(?:pass|pwd|secret|token|api[-_]?key|auth|credential)[\w.-]{0,40}"
_OPTION = rf"--?[\w.-]{{0,40}}?{_TELLING}"
_NEXT_IS_SECRET = re.compile(_OPTION, re.IGNORECASE)
_REST_IS_SECRET = re.compile(
    rf"""({_TELLING}["']?\s*[=:] | \s{_OPTION}\s+ | \bbearer\s+).+""", re.IGNORECASE | re.DOTALL | re.VERBOSE
)
_IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)\S*@")
_OF_USER = re.compile(r"(?:-u|--user|--proxy-user)")
"""As curl has them: their value is user:password."""


def shown(words: Sequence[str]) -> str:
    """One line for people.

    >>> shown(["pg_dump", "--password", "hunter2", "postgresql://ana:pw@db/shop"])
    "pg_dump --password *** 'postgresql://***@db/shop'"
    """
    said: list[str] = []
    before = ""
    for word in words[:_LONGEST]:
        text = os.fsencode(word)[:_READ].decode(errors="backslashreplace")
        said.append(_harmless(text, before))
        before = text
    line = " ".join(said).replace("'***'", "***")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def without_passwords(text: str) -> str:
    """A text of our own that repeats words which may be URLs.

    >>> without_passwords("unrecognized: --ulr redis://:hunter2@cache/0")
    'unrecognized: --ulr redis://***@cache/0'
    """
    return _IN_URL.sub(r"\1***@", text)


def _harmless(word: str, before: str) -> str:
    if _NEXT_IS_SECRET.fullmatch(before):
        return "***"
    if _OF_USER.fullmatch(before) and ":" in word:
        return quote(word.partition(":")[0]) + ":***"
    return quote(without_passwords(_REST_IS_SECRET.sub(r"\1***", word)))
