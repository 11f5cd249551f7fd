"""`dibs doctor`: what this store promises where it stands, and what its surroundings endanger, one line each.

The first line says which store that is, with the versions. Exit status: 0, or 1 if anything is in danger; 64 usage,
69 store unreachable, or refused: then the message says what is wrong with it. `--ddl` prints what makes the tables of a
store that lives in a database, for people whose programs may not: it asks no server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import dibs
from dibs.cli.options import Parser, UsageError, add_store, connect
from dibs.cli.talk import NO, OK, put, put_json
from dibs.faces import statements
from dibs.info import Finding

_WORDS = {"promise": "ok", "note": "note", "danger": "DANGER"}
_COLOURS = {"promise": "32", "note": "33", "danger": "1;31"}
_WIDTH = max(map(len, _WORDS.values()))


def main(arguments: Sequence[str]) -> int:
    parser = Parser("doctor", description="Say what the store promises, and what endangers that, with the fix.")
    parser.add_argument("--ddl", action="store_true", help="print the statements that make what the store needs")
    add_store(parser)
    options = parser.parse_args(arguments)
    with connect(options, "doctor") as client:
        if options.ddl:
            return _put_statements(statements(client))
        about, *findings = client.doctor()
    show = _put_object if options.json else _put_line
    show(about._replace(what=f"{about.what}, dibs {dibs.__version__}, Python {sys.version.split()[0]}"))
    for finding in findings:
        show(finding)
    return NO if any(finding.level == "danger" for finding in findings) else OK


def _put_statements(text: str) -> int:
    if not text:
        raise UsageError("this store makes its own tables: there are no statements to run for it")
    for line in text.splitlines():
        put(line)
    return OK


def _put_object(finding: Finding) -> None:
    put_json(finding._asdict())


def _put_line(finding: Finding) -> None:
    text = f"{finding.what}. Fix: {finding.fix}" if finding.fix else finding.what
    if finding.level in _WORDS:
        word = f"{_WORDS[finding.level]:<{_WIDTH}}"
        if _is_colourful():
            # Past `put`, which lets nothing through that steers a terminal; it flushes the line as one.
            sys.stdout.write(f"\033[{_COLOURS[finding.level]}m{word}\033[0m  ")
        else:
            text = f"{word}  {text}"
    put(text)


def _is_colourful() -> bool:
    wanted = os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")
    return wanted and sys.stdout is not None and sys.stdout.isatty()
