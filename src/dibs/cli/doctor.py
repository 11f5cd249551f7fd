"""`dibs doctor`: print what this store guarantees as it is set up, and what endangers that, one line each.

The first line names the store and the versions. Exit status: 0, or 1 if there is a danger; 64 usage, 69 the store
cannot be reached or refuses. With `--json` a store that cannot be reached is an object too, so a check only needs to
parse stdout.

`--ddl` prints the statements that create the tables of a database store, for an administrator to run if the application
may not create tables. It does not connect.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import dibs
from dibs._shared import statements
from dibs.cli.options import Parser, UsageError, add_seconds, add_store, connect
from dibs.cli.output import NO, OK, has_colour, put, put_json
from dibs.info import Finding

_WORDS = {"promise": "ok", "note": "note", "danger": "DANGER"}
_COLOURS = {"promise": "32", "note": "33", "danger": "1;31"}
_WIDTH = max(map(len, _WORDS.values()))
_TIMEOUT = 10.0
"""As the `retry` of a client."""


def parser() -> Parser:
    made = Parser(
        "doctor",
        description="Show what the store guarantees, and each setting that endangers it, with a fix.\n"
        "The exit status is 1 if there is a danger.",
    )
    made.add_argument("--ddl", action="store_true", help="print the SQL statements that create the tables, and exit")
    add_seconds(made, "--timeout", "end if the store does not answer within S (default: 10)", _TIMEOUT)
    add_store(made)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    with connect(options, "doctor", retry=options.timeout) as client:
        if options.ddl:
            return _put_statements(statements(client))
        try:
            about, *findings = client.doctor()
        except dibs.StoreError as error:
            if options.json:
                put_json({"level": "unreachable", "what": str(error), "fix": error.step or ""})
            raise
    show = _put_object if options.json else _put_line
    show(about._replace(what=f"{about.what}, dibs {dibs.__version__}, Python {sys.version.split()[0]}"))
    for finding in findings:
        show(finding)
    return NO if any(finding.level == "danger" for finding in findings) else OK


def _put_statements(text: str) -> int:
    if not text:
        raise UsageError("this store needs no statements: it creates everything by itself")
    for line in text.splitlines():
        put(line)
    return OK


def _put_object(finding: Finding) -> None:
    put_json(finding._asdict())


def _put_line(finding: Finding) -> None:
    level, what, fix = finding
    text = f"{what}. Fix: {fix}" if fix else what
    if level in _WORDS:
        word = f"{_WORDS[level]:<{_WIDTH}}"
        if has_colour():
            # Not through `put`, which removes control characters; `put` below flushes the whole line.
            sys.stdout.write(f"\033[{_COLOURS[level]}m{word}\033[0m  ")
        else:
            text = f"{word}  {text}"
    put(text)
