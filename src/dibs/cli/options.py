"""The options that the commands share: names, durations, and the store.

A name is the same lock in every locale: its bytes are read as UTF-8. A store's URL comes from `--url`, a file
(`--url-file`), or DIBS_URL. A password in `--url` gives a warning, as every user of the machine can see it.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import dibs
from dibs import _shared
from dibs._shared import NAMESPACE
from dibs.cli.output import USAGE, report, say
from dibs.info import command_line

_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(ms|s|m|h|d|)")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}
_LONGEST_URL = 10_000
_WIDTH = 79


class UsageError(Exception):
    """A command line that is incomplete or contradicts itself."""


class Parser(argparse.ArgumentParser):
    """argparse with our exit status, and without abbreviated options."""

    def __init__(self, command: str, **more: Any) -> None:
        # To learn the width of the terminal, argparse would import shutil, and with it every compressor.
        formatter = partial(argparse.RawDescriptionHelpFormatter, width=_WIDTH)
        super().__init__(prog=f"dibs {command}", allow_abbrev=False, formatter_class=formatter, **more)
        self.command = command

    @property
    def actions(self) -> Sequence[argparse.Action]:
        """The options and arguments, for completion."""
        return self._actions

    def error(self, message: str) -> NoReturn:
        """Print the message without passwords: it repeats unknown words, such as the URL after a mistyped `--url`."""
        from dibs.cli.description import without_passwords  # noqa: PLC0415  (seldom needed)

        say(f"{without_passwords(message)} (see dibs {self.command} --help)", command=self.command)
        raise SystemExit(USAGE)


def add_name(parser: argparse.ArgumentParser, **more: Any) -> None:
    parser.add_argument("name", metavar="NAME", type=lock_name, help="the name of the lock", **more)


def add_seconds(parser: argparse._ActionsContainer, option: str, text: str, default: float | None = None) -> None:
    """Add an option whose value is a duration."""
    parser.add_argument(option, metavar="S", type=seconds, default=default, help=text)


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has."""
    group = parser.add_argument_group("store options")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--url", help="URL of the store (default: $DIBS_URL, else a SQLite file of this user)")
    one.add_argument(
        "--url-file", metavar="FILE", help="read the URL from FILE, to keep a password off the command line"
    )
    _add_namespace(group)
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def add_server(parser: argparse.ArgumentParser, port: int) -> None:
    """Add the options of a command that serves one or more stores over HTTP. `port`: the default."""
    parser.add_argument(
        "--port", metavar="N", type=_port, default=port, help=f"TCP port; 0: a free one (default: {port})"
    )
    parser.add_argument("--bind", metavar="HOST", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    group = parser.add_argument_group("store options")
    group.add_argument(
        "--url",
        action="append",
        default=[],
        help="URL of a store; may be repeated (default: $DIBS_URL, else a SQLite file of this user)",
    )
    group.add_argument(
        "--url-file",
        metavar="FILE",
        action="append",
        default=[],
        help="read a URL from FILE, to keep a password off the command line; may be repeated",
    )
    _add_namespace(group)


def _add_namespace(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--namespace",
        metavar="TEXT",
        default=NAMESPACE,
        type=_namespace,
        help=f"prefix of all names (default: {NAMESPACE}; none with layout=redisson)",
    )


def _namespace(text: str) -> str:
    return text if text is NAMESPACE else lock_name(text)  # argparse passes the default, too


def lock_name(text: str) -> str:
    """The name of a lock; the client checks it."""
    try:
        return os.fsencode(text).decode()
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"the name {text[:80]!a} is not UTF-8") from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text[:20]!a} is not a port; write a number from 0 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """A duration in seconds: 30, 0.5, 500ms, 30s, 5m, 2h, 1d.

    >>> seconds("5m"), seconds("0.5"), seconds("250ms")
    (300.0, 0.5, 0.25)
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!a} is not a duration; write 30, 0.5, 500ms, 30s, 5m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def connect(options: argparse.Namespace, command: str, **more: Any) -> dibs.Client:
    """The client for these options; it does not connect yet."""
    url = options.url
    if options.url_file is not None:
        url = _read_url(options, command)
    elif url is not None and _shared.has_secret(url):
        _warn(options, command, "every user of this machine can see the password in --url; use DIBS_URL or --url-file")
    if (url or os.environ.get("DIBS_URL") or "").lower().startswith("memory:"):
        raise UsageError("memory:// is private to one process, so commands cannot share it. Next: use sqlite:////path")
    return dibs.connect(url, namespace=options.namespace, **more)


def connect_each(options: argparse.Namespace, command: str, **more: Any) -> list[dibs.Client]:
    """The clients for the options of `add_server`."""
    places = [(url, None) for url in options.url] + [(None, file) for file in options.url_file]
    return [
        connect(argparse.Namespace(url=url, url_file=file, namespace=options.namespace), command, **more)
        for url, file in places or [(None, None)]
    ]


def cannot_listen(options: argparse.Namespace, why: object) -> UsageError:
    return UsageError(f"cannot listen on {options.bind} port {options.port}: {why}. Next: choose --bind and --port")


def here_only(options: argparse.Namespace) -> str:
    """A note for a lock in the default store, which only this machine shares."""
    given = options.url or options.url_file or os.environ.get("DIBS_URL")
    return "" if given else " (this machine only)"


def next_command(options: argparse.Namespace, command: str, name: str, *more: str) -> str:
    """A command line for the same store, to paste into a shell. A password is left out.

    >>> next_command(argparse.Namespace(url="redis://cache", url_file=None, namespace=NAMESPACE), "show", "a b")
    "dibs show 'a b' --url redis://cache"
    """
    words, note = list(more), ""
    if options.url_file is not None:
        words += ["--url-file", options.url_file]
    elif options.url is not None and _shared.has_secret(options.url):
        words += ["--url-file", "FILE"]
        note = " (put the URL with its password into FILE)"
    elif options.url is not None:
        words += ["--url", options.url]
    if options.namespace is not NAMESPACE:
        words += ["--namespace", options.namespace]
    return command_line(command, name, *words) + note


def pairs(given: list[str]) -> Mapping[str, str]:
    """The pairs of one or more `--info k=v`."""
    found = {}
    for word in given:
        text = os.fsencode(word).decode(errors="backslashreplace")  # the same in every locale
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(f"--info takes key=value, not {text!a}")
        found[key] = value
    return found


def _warn(options: argparse.Namespace, command: str, text: str) -> None:
    report({"event": "warning", "text": text}, command=command, as_json=command == "run" and options.json)


def _read_url(options: argparse.Namespace, command: str) -> str:
    """Read the URL from a file of one line; warn if other users can read the file."""
    path = options.url_file
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                text = f"other users can read {path!a}, which holds the URL of the store; run chmod 600 on it"
                _warn(options, command, text)
            text = file.read(_LONGEST_URL).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"cannot read --url-file {path!a}: {why}") from None
    if not text or "\n" in text:
        raise UsageError(f"--url-file {path!a} must contain one line, the URL")
    return text
