"""`dibs COMMAND ...`: find the command, run it, and turn its exceptions into a message and an exit status.

One module per command, with a `main(arguments) -> status` and a `parser()` of its own. Only the module of the given
command is imported: the start-up time of `dibs run` delays the command that it runs.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from dibs.cli.output import (
    BY_SIGNAL,
    NOT_BY_SYSTEM,
    OK,
    UNREACHABLE,
    USAGE,
    occupy_closed_descriptors,
    put,
    redirect_to_null,
    report,
    say,
)

COMMANDS = {
    "run": ("dibs.cli.run", "run a command while holding a lock"),
    "ls": ("dibs.cli.ls", "list the locks that are held or waited for"),
    "show": ("dibs.cli.show", "show the holders and the queue of one lock"),
    "watch": ("dibs.cli.watch", "print the changes of one lock, or of all with a prefix"),
    "top": ("dibs.cli.top", "show the locks live, the most contended first"),
    "wait": ("dibs.cli.wait", "wait until a lock is free, without taking it"),
    "break": ("dibs.cli.break_", "take a lock away from its holder"),
    "doctor": ("dibs.cli.doctor", "check what the store guarantees, and what endangers it"),
    "exporter": ("dibs.cli.exporter", "serve the figures of stores to Prometheus"),
    "dashboard": ("dibs.cli.dashboard", "show the locks in a browser"),
    "demo": ("dibs.cli.demo", "watch processes compete for one lock"),
    "completion": ("dibs.cli.completion", "print a completion script for bash, zsh or fish"),
}
_POSIX = ("run", "demo")
"""Commands that fork processes and send them signals."""


def main(arguments: Sequence[str] | None = None) -> int:
    occupy_closed_descriptors()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _dispatch(words)
    except BrokenPipeError:
        redirect_to_null(1)  # as by `| head`
        status = BY_SIGNAL + signal.SIGPIPE
    except OSError as error:  # a full disk, or too many processes or threads
        redirect_to_null(1)
        say(f"dibs: the operating system refused: {error}")
        status = NOT_BY_SYSTEM
    if arguments is None:  # skip the garbage collection at exit
        gc.freeze()
    return status


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        return _help(words)
    if words[0] in ("-V", "--version"):
        import dibs  # noqa: PLC0415  (as in _perform)

        put(f"dibs {dibs.__version__}")
        return OK
    if words[0] not in COMMANDS:
        say(f"dibs: {_no_command(words[0])}")
        return USAGE
    return _perform(words[0], words[1:])


def _perform(command: str, words: list[str]) -> int:
    from dibs.cli.options import UsageError  # noqa: PLC0415
    from dibs.errors import DibsError, Mismatch, MissingDriver, Unsupported  # noqa: PLC0415

    if command in _POSIX and not hasattr(os, "fork"):
        say("this command needs a POSIX system, such as Linux", command=command)
        return USAGE
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the locale cannot encode is shown escaped
    try:
        status: int = import_module(COMMANDS[command][0]).main(words)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():
            say("")  # after the ^C
        return BY_SIGNAL + signal.SIGINT
    except (UsageError, Mismatch, MissingDriver, Unsupported, ValueError) as error:  # BadName is a ValueError too
        _tell(command, words, error)
        return USAGE
    except DibsError as error:
        _tell(command, words, error)
        return UNREACHABLE
    return status


def _tell(command: str, words: list[str], error: Exception) -> None:
    own = words[: words.index("--") if "--" in words else None]
    report({"event": "error", "text": str(error)}, command=command, as_json=command == "run" and "--json" in own)


def _no_command(word: str) -> str:
    if word.startswith("-"):
        return f"options follow the command: dibs COMMAND {word[:40]!a} ..."
    from difflib import get_close_matches  # noqa: PLC0415  (seldom needed)

    near = get_close_matches(word, COMMANDS, n=1)
    meant = f"; did you mean {near[0]}?" if near else "."
    return f"unknown command {word[:40]!a}{meant} The commands are {', '.join(COMMANDS)}"


def _help(words: list[str]) -> int:
    if len(words) > 1 and words[1] in COMMANDS:
        return _perform(words[1], ["--help"])
    width = max(map(len, COMMANDS))
    put("usage: dibs COMMAND ...\n       dibs --version\n\nDistributed locks.\n\ncommands:")
    for command, (_, what) in COMMANDS.items():
        put(f"  {command:<{width}}  {what}")
    put(
        "\nThe options of a command: dibs COMMAND --help.\n"
        "The store is --url, else $DIBS_URL, else a SQLite file of this user."
    )
    return OK if words else USAGE


if __name__ == "__main__":
    sys.exit(main())
