"""`dibs completion`, in real shells: bash called as bash calls it, and the Tab key of bash, zsh and fish."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

import dibs
from cli.commands import COMMAND, Cli, Place, Terminal
from cli.terminals import installed
from dibs.cli.main import COMMANDS
from dibs.cli.run import parser

NAMES = [
    "report:nightly",
    "report:weekly",
    "deploy",
    "two words",
    "$(touch executed)",
    "`touch executed`",
    "*",
    "~root",
    'it\'s "q"',
    "café",
]
BASH = ["bash", "--norc", "--noprofile"]
UTF_8 = {"LC_ALL": "C.UTF-8"}


@cache
def script(shell: str) -> str:
    return subprocess.run([*COMMAND, "completion", shell], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """With a lock for each of the names."""
    made = Place(tmp_path)
    with dibs.connect(made.url) as client, ExitStack() as held:
        for name in NAMES:
            held.enter_context(client.lock(name))
        yield made


def nothing_was_executed(place: Place) -> None:
    assert not list(place.shop.iterdir()), "a name was executed"


def reply(place: Place, *words: str, after: str = "", breaks: str = " :") -> list[str]:
    """The completions offered for the last word. `after`: the text behind the cursor."""
    line = " ".join(words)
    call = f"""{script("bash")}
COMP_WORDS=({" ".join(map(shlex.quote, _split(words, breaks)))})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_LINE={shlex.quote(line + after)} COMP_POINT={len(line)}
COMP_WORDBREAKS={shlex.quote(breaks)}
_dibs dibs
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    words = [*BASH, "-u", "-c", call]
    env = place.environment(**UTF_8)
    done = subprocess.run(words, env=env, cwd=place.shop, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    nothing_was_executed(place)
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
    assert reply(place, "dibs", "") == list(COMMANDS)
    assert reply(place, "dibs", "w") == ["watch", "wait"]
    assert reply(place, "dibs", "run", "deploy", "--sk") == ["--skip"]
    assert "--token" in reply(place, "dibs", "break", "deploy", "--")
    assert set(reply(place, "dibs", "run", "deploy", "-")) == set(parser()._option_string_actions)
    assert "--no-lock" not in reply(place, "dibs", "demo", "--"), "that is for tests"
    assert reply(place, "dibs", "run", "dep") == reply(place, "dibs", "break", "dep") == ["deploy"]
    assert reply(place, "dibs", "show", "--", "dep") == ["deploy"], "behind two dashes a name is a name"
    assert reply(place, "dibs", "show", "dep", after=" --json") == ["deploy"], "the cursor in the middle"
    assert reply(place, "dibs", "doctor", "dep") == [], "no names where none are asked for"
    assert reply(place, "dibs", "run", "--timeout", "dep") == [], "nor where a value is"
    assert reply(place, "dibs", "completion", "") == ["bash", "zsh", "fish"]


@pytest.mark.gate
def test_names_as_the_shell_must_read_them(place: Place) -> None:
    offered = reply(place, "dibs", "show", "")
    evaluated = subprocess.run(
        [*BASH, "-c", f"printf '%s\\n' {' '.join(offered)}"],
        env=place.environment(**UTF_8), cwd=place.shop, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(evaluated.stdout.splitlines()) == sorted(NAMES)
    assert "$(touch executed)" not in offered


def test_names_with_a_colon(place: Place) -> None:
    """Where it breaks words, only what follows the colon is replaced."""
    assert reply(place, "dibs", "show", "report:n") == ["nightly"]
    assert sorted(reply(place, "dibs", "show", "report:")) == ["nightly", "weekly"]
    assert reply(place, "dibs", "show", "report:n", breaks=" ") == ["report:nightly"]


@pytest.mark.gate
def test_names_come_from_the_store_on_the_line(place: Place, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other file.db"
    with dibs.connect(url, namespace="ours") as client, client.lock("depot"):
        there = ("--url", shlex.quote(url), "--namespace=ours")
        assert reply(place, "dibs", "show", *there, "dep") == ["depot"]
    assert reply(place, "dibs", "show", "--url", "redis://127.0.0.1:1", "dep") == [], (
        "nobody is there: no names, no word"
    )


@pytest.mark.gate
def test_programs_and_then_files(place: Place) -> None:
    place.program("deploy-now", "true", place.bin)
    assert reply(place, "dibs", "run", "deploy", "--", "deploy-n") == ["deploy-now"]
    assert reply(place, "dibs", "run", "deploy", "--", "deploy-now", "dep") == [], "files: bash's own"


def tab(place: Place, words: list[str], prompt: str) -> Terminal:
    env = place.environment(TERM="dumb", DIBS_URL=place.url, **UTF_8)
    shell = Terminal(["/usr/bin/env", *words], env, place.shop)
    shell.hear(prompt)
    return shell


@pytest.mark.gate
def test_the_tab_key_of_bash(place: Place) -> None:
    (place.home / "rc").write_text(f"{script('bash')}\nPS1='> '\nbind 'set bell-style none' 2>/dev/null\n")
    with tab(place, ["bash", "--noprofile", "--rcfile", str(place.home / "rc"), "-i"], "> ") as shell:
        shell.type("true; dibs sh\tdep\t--js\t")  # the line has more on it than our command
        shell.hear("dibs show deploy --json ")
        shell.type("\n")
        shell.hear('{"name": "deploy"')
        shell.type("dibs show report:n\t")
        shell.hear("dibs show report:nightly ")
        shell.type("\x15exit\n")
        assert shell.end() == 0


@pytest.mark.gate
def test_the_tab_key_of_zsh(place: Place) -> None:
    installed("zsh")
    (place.home / ".zshrc").write_text(
        f"autoload -U compinit && compinit -u -D\neval {shlex.quote(script('zsh'))}\nunsetopt beep\nPS1='> '\n"
    )
    place.program("deploy-now", "echo deployed", place.bin)
    with tab(place, ["zsh", "-d", "-i"], "> ") as shell:
        shell.type("true; dibs sh\tdep\t--js\t\n")
        shell.hear('{"name": "deploy"')
        shell.type("dibs show report:n\t --json\n")
        shell.hear('{"name": "report:nightly"')
        shell.type("dibs show \\$\t --json\n")
        shell.hear('{"name": "$(touch executed)"')
        shell.type("dibs run free --ski\t-- deploy-n\t\n")
        shell.hear("deployed")
        nothing_was_executed(place)
        shell.type("exit\n")
        assert shell.end() == 0


@pytest.mark.gate
def test_what_fish_offers(place: Place) -> None:
    installed("fish")
    place.program("deploy-now", "true", place.bin)
    config = place.home / ".config/fish/completions"
    config.mkdir(parents=True)
    (config / "dibs.fish").write_text(script("fish"))

    def offered(line: str) -> list[str]:
        words = ["fish", "-c", f"complete -C {shlex.quote(line)}"]
        env = place.environment(DIBS_URL=place.url, **UTF_8)
        done = subprocess.run(words, env=env, cwd=place.shop, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        nothing_was_executed(place)
        return [candidate.partition("\t")[0] for candidate in done.stdout.splitlines()]

    assert sorted(offered("dibs ")) == sorted(COMMANDS)
    assert offered("dibs run deploy --sk") == ["--skip"]
    assert offered("dibs show dep") == offered("dibs break dep") == offered("dibs run dep") == ["deploy"]
    assert set(NAMES) <= set(offered("dibs show "))
    assert offered("dibs show report:n") == ["report:nightly"]
    assert offered("dibs doctor dep") == []
    assert offered("dibs run deploy -- deploy-n") == ["deploy-now"]
    assert sorted(offered("dibs completion ")) == ["bash", "fish", "zsh"]


def test_another_shell(cli: Cli) -> None:
    done = cli.run("completion", "csh")
    assert (done.returncode, done.stdout) == (64, "")
    assert "'bash', 'zsh', 'fish'" in done.stderr
