"""`dibs COMMAND ...`: finds the command, runs it, and turns what it raises into a message and an exit status.

One module per command, with a `main(arguments) -> status` of its own; only the one that is asked for is imported, as
`dibs run` stands in front of other programs and its start is their delay.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from dibs.cli.talk import (
    BY_SIGNAL,
    NOT_BY_SYSTEM,
    OK,
    UNREACHABLE,
    USAGE,
    drop_unread,
    occupy_closed_descriptors,
    put,
    say,
)

COMMANDS = {
    "run": ("dibs.cli.run", "run a command while holding a lock"),
    "ls": ("dibs.cli.ls", "list what is held or waited for, worst first"),
    "show": ("dibs.cli.show", "show one lock: its holders, and who waits, in order"),
    "watch": ("dibs.cli.watch", "follow one lock as its line moves"),
    "wait": ("dibs.cli.wait", "wait until a lock is free, without taking it"),
    "break": ("dibs.cli.break_", "take a lock away from the holder with that token"),
    "doctor": ("dibs.cli.doctor", "say what the store promises, and what endangers that"),
    "demo": ("dibs.cli.demo", "watch processes fight for one resource"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    occupy_closed_descriptors()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _dispatch(words)
    except BrokenPipeError:
        drop_unread(1)  # as by `| head`
        status = BY_SIGNAL + signal.SIGPIPE
    except OSError as error:  # no room, no process, no thread: what the system refuses
        drop_unread(1)
        say(f"the system refuses: {error}")
        status = NOT_BY_SYSTEM
    if arguments is None:  # before it ends, the interpreter would look through all that was loaded, several times
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
        say(_no_command(words[0]))
        return USAGE
    return _perform(words[0], words[1:])


def _perform(command: str, words: list[str]) -> int:
    from dibs.cli.options import UsageError  # noqa: PLC0415
    from dibs.errors import DibsError, Mismatch, Unsupported  # noqa: PLC0415

    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale that cannot say a name shows it nevertheless
    try:
        status: int = import_module(COMMANDS[command][0]).main(words)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():
            say("")  # behind the ^C
        return BY_SIGNAL + signal.SIGINT
    except (UsageError, Mismatch, Unsupported, ValueError) as error:  # BadName is a ValueError too
        _tell(command, words, error)
        return USAGE
    except DibsError as error:
        _tell(command, words, error)
        return UNREACHABLE
    return status


def _tell(command: str, words: list[str], error: Exception) -> None:
    """All that `run --json` says of its own is JSON: on its stderr it stands between the lines of the command."""
    if command == "run" and "--json" in words[: words.index("--") if "--" in words else None]:
        import json  # noqa: PLC0415  (not needed to start)

        say(json.dumps({"event": "error", "text": str(error)}))
    else:
        say(str(error), command=command)


def _no_command(word: str) -> str:
    if word.startswith("-"):
        return f"options stand behind the command: dibs COMMAND {word[:40]!a} ..."
    from difflib import get_close_matches  # noqa: PLC0415  (seldom needed)

    near = get_close_matches(word, COMMANDS, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"there is no command {word[:40]!a}{meant} There are {', '.join(COMMANDS)}"


def _help(words: list[str]) -> int:
    if len(words) > 1 and words[1] in COMMANDS:
        return _perform(words[1], ["--help"])
    width = max(map(len, COMMANDS))
    put("usage: dibs COMMAND ...\n\nLocks that processes share.\n")
    for command, (_, what) in COMMANDS.items():
        put(f"  {command:<{width}}  {what}")
    put("\nEach has its own options: dibs COMMAND --help. The store is $DIBS_URL, or --url.")
    return OK if words else USAGE


if __name__ == "__main__":
    sys.exit(main())
