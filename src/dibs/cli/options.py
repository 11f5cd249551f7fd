"""What the commands have in common on their command lines: names, times, and which store is meant.

A name is the same lock in every locale: its bytes are read as UTF-8, whatever the locale says. A store's URL comes from
`--url`, a file (`--url-file`), or DIBS_URL; a password on a command line is seen by every user of the machine, and
warned of.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Mapping
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any, NoReturn

import dibs
from dibs import faces
from dibs.cli.talk import USAGE, say

_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(ms|s|m|h|d|)")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}
_LONGEST_URL = 10_000
_WIDTH = 79


class UsageError(Exception):
    """A command line that says nothing, or two things."""


class Parser(argparse.ArgumentParser):
    """argparse, with our exit status, and without guessing at half an option."""

    def __init__(self, command: str, **more: Any) -> None:
        # To learn the width of the terminal, argparse would import shutil, and with it every compressor that there is.
        formatter = partial(argparse.RawDescriptionHelpFormatter, width=_WIDTH)
        super().__init__(prog=f"dibs {command}", allow_abbrev=False, formatter_class=formatter, **more)
        self.command = command

    def error(self, message: str) -> NoReturn:
        """What is said of a word that is not understood repeats it: it may be a URL behind a mistyped `--url`."""
        from dibs.cli.about import without_passwords  # noqa: PLC0415  (seldom needed)

        say(f"{without_passwords(message)} (see dibs {self.command} --help)", command=self.command)
        raise SystemExit(USAGE)


def add_store(parser: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    group = parser.add_argument_group("the store")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--url", help="where the locks are (default: $DIBS_URL, else a file of this user on this machine)")
    one.add_argument("--url-file", metavar="FILE", help="a file with the URL: keeps a password off the command line")
    group.add_argument("--namespace", default="dibs", type=name, help="as in dibs.connect() (default: dibs)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def name(text: str) -> str:
    """A lock's name; what it may be is checked by the client."""
    try:
        return os.fsencode(text).decode()
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"the name {text[:80]!a} is not UTF-8") from None


def time(text: str) -> float:
    """A length of time: 30, 0.5, 500ms, 30s, 5m, 2h, 1d.

    >>> time("5m"), time("0.5"), time("250ms")
    (300.0, 0.5, 0.25)
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!a} is no length of time: write 30, 0.5, 500ms, 30s, 5m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def connect(options: argparse.Namespace, command: str, **more: Any) -> dibs.Client:
    """The client that the options ask for; nothing is asked of the store yet."""
    url = options.url
    if options.url_file is not None:
        url = _read_url(options, command)
    elif url is not None and faces.has_secret(url):
        _warn(options, command, "a password in --url is seen by all on this machine: use DIBS_URL or --url-file")
    if (url or os.environ.get("DIBS_URL") or "").lower().startswith("memory:"):
        raise UsageError(
            "memory:// is one store per process, and each command is a process of its own. Next: sqlite:////path"
        )
    return dibs.connect(url, namespace=options.namespace, **more)


def here_only(options: argparse.Namespace) -> str:
    """What is said of a lock that reaches no further than this machine, because nobody said which store."""
    given = options.url or options.url_file or os.environ.get("DIBS_URL")
    return "" if given else " (this machine only)"


def pairs(given: list[str]) -> Mapping[str, str]:
    """What `--info k=v` says, one or more times."""
    found = {}
    for word in given:
        text = os.fsencode(word).decode(errors="backslashreplace")  # the same in every locale
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(f"--info takes key=value, not {text!a}")
        found[key] = value
    return found


def _warn(options: argparse.Namespace, command: str, text: str) -> None:
    """Between the lines of a command that `run --json` started, our own are JSON."""
    if command == "run" and options.json:
        say(dumps({"event": "warning", "text": text}))
    else:
        say(text, command=command)


def _read_url(options: argparse.Namespace, command: str) -> str:
    """The first line of a file that nobody else can read."""
    path = options.url_file
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                _warn(options, command, f"others may open {path!a}, which holds a store's URL: chmod 600 it")
            text = file.read(_LONGEST_URL).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--url-file {path!a} cannot be read: {why}") from None
    if not text or "\n" in text:
        raise UsageError(f"--url-file {path!a} must hold one line, a URL")
    return text
