"""The completion of docs/cli.md, in a real bash: called as bash calls it, and by the Tab key of a terminal."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import dibs
from cli.commands import Terminal
from cli.snippets import ROOT, Place, blocks
from dibs.cli.run import _parser

COMMANDS = ["run", "ls", "show", "watch", "wait", "break", "doctor", "demo"]
NAMES = [
    "report:nightly",
    "report:weekly",
    "deploy",
    "two words",
    "$(touch executed)",
    "`touch executed`",
    "*",
    "~root",
]
BASH = ["bash", "--norc", "--noprofile"]


def function() -> str:
    (block,) = [block for block in blocks(ROOT / "docs" / "cli.md") if block.language == "bash"]
    return block.text


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """With a lock for each of the names."""
    made = Place(tmp_path)
    with dibs.connect(made.url) as client, ExitStack() as held:
        for name in NAMES:
            held.enter_context(client.lock(name))
        yield made


def reply(place: Place, *words: str, after: str = "", breaks: str = " :") -> list[str]:
    """What is offered for the last word. `after`: what stands behind the cursor."""
    line = " ".join(words)
    call = f"""{function()}
COMP_WORDS=({" ".join(map(shlex.quote, _split(words, breaks)))})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_LINE={shlex.quote(line + after)} COMP_POINT={len(line)}
COMP_WORDBREAKS={shlex.quote(breaks)}
_dibs dibs
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    words = [*BASH, "-u", "-c", call]
    done = subprocess.run(words, env=place.environment(), cwd=place.shop, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(place.shop.iterdir()), "a name was executed"
    return [line for line in done.stdout.split("\n") if line]


def _split(words: Sequence[str], breaks: str) -> list[str]:
    """As readline does: a colon is a word of its own."""
    found: list[str] = []
    for word in words:
        head, *more = word.split(":") if ":" in breaks else [word]
        found.append(head)
        for part in more:
            found += [":", part] if part else [":"]
    return found


def test_commands_options_and_names(place: Place) -> None:
    assert reply(place, "dibs", "") == COMMANDS
    assert reply(place, "dibs", "w") == ["watch", "wait"]
    assert reply(place, "dibs", "run", "deploy", "--sk") == ["--skip"]
    assert "--token" in reply(place, "dibs", "break", "deploy", "--")
    assert set(reply(place, "dibs", "run", "deploy", "-")) == set(_parser()._option_string_actions)
    assert reply(place, "dibs", "run", "dep") == reply(place, "dibs", "break", "dep") == ["deploy"]
    assert reply(place, "dibs", "show", "--", "dep") == ["deploy"], "behind two dashes a name is a name"
    assert reply(place, "dibs", "show", "dep", after=" --json") == ["deploy"], "the cursor in the middle"
    assert reply(place, "dibs", "doctor", "dep") == [], "no names where none are asked for"


def test_names_as_the_shell_must_read_them(place: Place) -> None:
    offered = reply(place, "dibs", "show", "")
    read = [shlex.split(word)[0] for word in offered]
    assert sorted(read) == sorted(NAMES)
    assert "$(touch executed)" not in offered


def test_names_with_a_colon(place: Place) -> None:
    """Where it breaks words, only what follows the colon is replaced."""
    assert reply(place, "dibs", "show", "report:n") == ["nightly"]
    assert sorted(reply(place, "dibs", "show", "report:")) == ["nightly", "weekly"]
    assert reply(place, "dibs", "show", "report:n", breaks=" ") == ["report:nightly"]


def test_programs_and_then_files(place: Place) -> None:
    place.program("deploy-now", "true", place.bin)
    assert reply(place, "dibs", "run", "deploy", "--", "deploy-n") == ["deploy-now"]
    assert reply(place, "dibs", "run", "deploy", "--", "deploy-now", "dep") == [], "files: bash's own"


def test_the_tab_key(place: Place) -> None:
    (place.home / "rc").write_text(f"{function()}\nPS1='> '\nbind 'set bell-style none' 2>/dev/null\n")
    bash = ["/usr/bin/env", "bash", "--noprofile", "--rcfile", str(place.home / "rc"), "-i"]
    shell = Terminal(bash, place.environment(TERM="dumb", DIBS_URL=place.url), place.shop)
    try:
        shell.hear("> ")
        shell.type("true; dibs sh\tdep\t--js\t")  # the line has more on it than our command
        shell.hear("dibs show deploy --json ")
        shell.type("\n")
        shell.hear('{"name": "deploy"')
        shell.type("dibs show report:n\t")
        shell.hear("dibs show report:nightly ")
        shell.type("\x15exit\n")
        assert shell.end() == 0
    finally:
        shell.discard()
