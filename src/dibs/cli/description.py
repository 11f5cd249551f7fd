"""The description of a command that others see: its words, shortened, without anything that looks like a secret.

Everyone who can read the store sees it. Secrets are recognised by their form; if in doubt, a word is hidden.
`--info command=...` sets another text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from shlex import quote

_LONGEST = 200
_READ = 4000
"""Characters of a word that are checked: more than are shown, so that a secret is recognised."""
_TELLING = (
    r"(?:pass(?:w|wd|word|phrase)?|pwd|pw|secret|token|(?:api|access|private|secret)[-_]?key|"
    r"auth(?:orization)?|credentials?)"
)
_KEY = rf"[\w-]{{0,40}}?{_TELLING}(?:[_-][\w-]{{0,40}})?"
"""A name that contains such a word: DB_PW, x-auth-token; not author, not test_auth.py."""
_OPTION = rf"--?{_KEY}"
_NEXT_IS_SECRET = re.compile(_OPTION, re.IGNORECASE)
_REST_IS_SECRET = re.compile(
    rf"""((?:^|[^\w.-])-{{0,2}}{_KEY}["']?\s*[=:] | \s{_OPTION}\s+ | \bbearer\s+).+""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)\S*@")
_OF_USER = re.compile(r"-u|--user|--proxy-user")
"""Options of curl whose value is user:password."""
_WITH_USER = re.compile(r"(^(?:-u|--user=|--proxy-user=)[^:]*:).+", re.DOTALL)
_GLUED = re.compile(r"(^-p).+", re.DOTALL)
_SHORT = {
    "mysql": "",
    "mysqldump": "",
    "mysqladmin": "",
    "mariadb": "",
    "mariadb-dump": "",
    "sshpass": "-p",
    "redis-cli": "-a",
}
"""Programs that take a password as -pPASSWORD, or after that option."""


def describe_command(words: Sequence[str]) -> str:
    """The words of a command as others may see them.

    >>> describe_command(["pg_dump", "--password", "hunter2", "postgresql://ana:pw@db/shop"])
    "pg_dump --password *** 'postgresql://***@db/shop'"
    """
    texts = [os.fsencode(word)[:_READ].decode(errors="backslashreplace") for word in words[:_LONGEST]]
    short = _SHORT.get(texts[0].rpartition("/")[2])
    said = [_harmless(text, before, short) for before, text in zip(["", *texts], texts, strict=False)]
    line = " ".join(said).replace("'***'", "***")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def without_passwords(text: str) -> str:
    """Hide passwords of URLs in a message that repeats words of the user.

    >>> without_passwords("unrecognized: --ulr redis://:hunter2@cache/0")
    'unrecognized: --ulr redis://***@cache/0'
    """
    return _IN_URL.sub(r"\1***@", text)


def _harmless(word: str, before: str, short: str | None) -> str:
    """The quoted word, without secrets. `short`: the option after which this program takes its password."""
    if _NEXT_IS_SECRET.fullmatch(before) or (short and before == short):
        return "***"
    if _OF_USER.fullmatch(before) and ":" in word:
        return quote(word.partition(":")[0]) + ":***"
    word = _WITH_USER.sub(r"\1***", word if short is None else _GLUED.sub(r"\1***", word))
    return quote(without_passwords(_REST_IS_SECRET.sub(r"\1***", word)))
