"""The pages of the command line have every command, option and exit status that the code has, and no other."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
from importlib import import_module

from cli.commands import ROOT
from dibs.cli import output, run
from dibs.cli.main import COMMANDS

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
STATUSES = (ROOT / "docs" / "reference" / "exit-statuses.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+|128 \+ n) \| `(\w+)` \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
OPTION = re.compile(r"^\| (`-[^|]+) \|", re.MULTILINE)
SHARED = {"--url", "--url-file", "--namespace", "--json"}


def constants() -> dict[str, int]:
    found = {name: value for name, value in vars(output).items() if name.isupper() and not name.startswith("_")}
    assert {"OK", "LOST", "BY_SIGNAL"} <= found.keys()
    return found


def test_every_exit_status_is_on_the_page() -> None:
    rows = {name: 128 if status == "128 + n" else int(status) for status, name, *_ in ROW.findall(STATUSES)}
    assert rows == constants()
    assert STATUSES.count("\n| ") == len(rows) + 1, "a row of another shape"


def test_the_commands_of_a_status_are_those_that_use_it() -> None:
    """By the names in the modules of each command."""
    for _, name, _, commands, _ in ROW.findall(STATUSES):
        named = set(re.findall(r"`(\w+)`", commands))
        assert named <= COMMANDS.keys()
        if named and name not in ("CANNOT_RUN", "NOT_FOUND"):  # those are in a part of `run`
            using = {command for command, (module, _) in COMMANDS.items() if hasattr(import_module(module), name)}
            assert using == named, name
    assert ROW.findall(STATUSES)


def test_the_signals_that_the_page_names() -> None:
    for number, word in ((130, "SIGINT"), (141, "SIGPIPE"), (143, "SIGTERM")):
        assert f"{number} " in STATUSES
        assert number == output.BY_SIGNAL + signal.Signals[word]


def section(command: str) -> str:
    """The section of a command, without its title."""
    (found,) = re.findall(rf"^## dibs {command}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_every_command_and_option_is_on_the_page() -> None:
    for command in COMMANDS:
        actions: list[argparse.Action] = import_module(COMMANDS[command][0]).parser().actions
        public = [one for one in actions if one.option_strings and one.help != argparse.SUPPRESS and one.dest != "help"]
        own = {name for one in public for name in one.option_strings}
        if command not in ("dashboard", "exporter", "demo", "completion"):
            assert own >= SHARED
            own -= SHARED
        documented = {name for cell in OPTION.findall(section(command)) for name in re.findall(r"`(--?[a-z-]+)", cell)}
        assert documented == own
        for one in public:
            if isinstance(one.default, int | float) and not isinstance(one.default, bool):
                (row,) = re.findall(rf"^\| `[^|]*{one.option_strings[-1]}\b.*$", section(command), re.MULTILINE)
                assert f" {one.default:g} |" in row or f" {one.default:g} s |" in row, row


def test_shared_options_are_on_the_page() -> None:
    shared = PAGE.partition("## Options of most commands")[2].partition("\n## ")[0]
    assert {name for cell in OPTION.findall(shared) for name in re.findall(r"`(--?[a-z-]+)", cell)} == SHARED


def test_the_words_of_the_json_are_those_of_the_code() -> None:
    source = "".join(path.read_text() for path in [*(ROOT / "src/dibs/cli").glob("*.py"), ROOT / "src/dibs/info.py"])
    for word in re.findall(r"`([a-z_-]+)`", PAGE.partition("## JSON")[2].partition("\n## ")[0]):
        assert f'"{word}"' in source or f"{word}=" in source or f"{word}:" in source, word


def test_the_commands_of_the_pages_are_ones_that_dibs_understands() -> None:
    """Commands in running text and tables; test_snippets.py runs the shell blocks."""
    pages = PAGE + (ROOT / "docs" / "running-jobs.md").read_text(encoding="utf-8")
    found = {
        text
        for text in re.findall(r"`(?:flock \S+ )?dibs (run [^`…]+)`", pages)
        if " -- " in text and "NAME" not in text
    }
    assert len(found) > 15
    for text in found:
        options = run._options(shlex.split(text)[1:])
        assert (options.name, bool(options.command)) == (
            shlex.split(text)[1] if "-- --" not in text else "--force",
            True,
        )
