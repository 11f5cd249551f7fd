"""`dibs completion SHELL`: print a completion script for bash, zsh or fish.

Commands and options are written into the script, from the parsers of the commands. Lock names come from the store at
each Tab: the script calls `dibs completion names LINE`, which reads the store options from the line typed so far, waits
at most a second for the store, and prints one name per line. Names are untrusted: the scripts quote them, and
never evaluate them.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import NamedTuple

from dibs.cli.options import Parser, add_store, connect
from dibs.cli.output import OK, put
from dibs.cli.polling import POLL_TIMEOUT

_MOST_NAMES = 1000
_BASH = """\
# Completion of dibs for bash. Load it with: eval "$(dibs completion bash)"
_dibs() {
    local line=${COMP_LINE:0:$COMP_POINT} command=${COMP_WORDS[1]} word name before= at options= values= last=
    local -a words
    word=${line##*[[:space:]]}
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$word"))
        return
    fi
    case $command in
@OPTIONS@
    esac
    for ((at = 2; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] && break
    done
    read -ra words <<<"${line%"$word"}"
    ((${#words[@]})) && last=${words[${#words[@]}-1]}
    if [[ $command == run ]] && ((at < COMP_CWORD)); then
        ((at + 1 == COMP_CWORD)) && COMPREPLY=($(compgen -c -- "$word"))
    elif ((at == COMP_CWORD)) && [[ " $values " == *" $last "* ]]; then
        [[ $last == --url-file ]] || compopt +o default 2>/dev/null
    elif ((at == COMP_CWORD)) && [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    elif [[ $command == completion ]]; then
        COMPREPLY=($(compgen -W "bash zsh fish" -- "$word"))
    elif [[ " @NAMED@ " == *" $command "* ]]; then
        [[ ${COMP_WORDBREAKS-} == *:* ]] && before=${word%"${word##*:}"}
        while IFS= read -r name; do
            [[ $name == "$word"* ]] && printf -v name %q "${name#"$before"}" && COMPREPLY+=("$name")
        done < <(dibs completion names "$line" 2>/dev/null)
    fi
}
complete -o default -F _dibs dibs"""
_ZSH = """\
#compdef dibs
# Completion of dibs for zsh. Load it after compinit with: eval "$(dibs completion zsh)"
_dibs() {
    local command=$words[2] last=$words[CURRENT-1] at
    local -a listed flags values names  # zsh has arrays of its own called commands and options
    listed=(
@COMMANDS@
    )
    if ((CURRENT == 2)); then
        _describe command listed
        return
    fi
    case $command in
@OPTIONS@
    esac
    at=$words[(i)--]
    if [[ $command == run ]] && ((at < CURRENT)); then
        shift $at words
        ((CURRENT -= at))
        _normal
    elif ((at >= CURRENT && $values[(Ie)$last])); then
        [[ $last == --url-file ]] && _files
    elif ((at >= CURRENT)) && [[ $PREFIX == -* ]]; then
        _describe -o option flags
    elif [[ $command == completion ]]; then
        compadd bash zsh fish
    elif [[ " @NAMED@ " == *" $command "* ]]; then
        names=("${(@f)$(dibs completion names "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
        compadd -- ${names:#}
    fi
}
if [[ $funcstack[1] == _dibs ]]; then _dibs; else compdef _dibs dibs; fi"""
_FISH = """\
# Completion of dibs for fish. Load it with: dibs completion fish | source
function __dibs_at
    set -l words (commandline -opc)
    test (count $words) -ge 2; and contains -- $words[2] $argv; and not contains -- -- $words
end
function __dibs_names
    set -l words (commandline -opc)
    test (count $words) -ge 2; and contains -- $words[2] @NAMED@; or return 1
    test $words[2] != run; or not contains -- -- $words
end
function __dibs_runs
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test $words[2] = run; and contains -- -- $words
end
function __dibs_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    complete -C (string join ' ' -- (string escape -- $words[(math $at + 1)..-1]) (commandline -ct))
end
complete -c dibs -f
@COMMANDS@
@OPTIONS@
complete -c dibs -n '__dibs_at completion' -a 'bash zsh fish'
complete -c dibs -n __dibs_names -a '(dibs completion names (commandline -cp | string collect) 2>/dev/null)'
complete -c dibs -n __dibs_runs -a '(__dibs_command)'"""


class Option(NamedTuple):
    names: Sequence[str]
    takes_value: bool
    text: str


class Command(NamedTuple):
    name: str
    text: str
    options: Sequence[Option]
    takes_lock: bool
    """Its argument is the name of a lock, or a prefix of names."""


def parser() -> Parser:
    made = Parser(
        "completion",
        description="Print a completion script: commands, options, and the names of locks that are held.",
        epilog='  bash: eval "$(dibs completion bash)" in ~/.bashrc\n'
        '  zsh:  eval "$(dibs completion zsh)" in ~/.zshrc, after compinit\n'
        "  fish: dibs completion fish > ~/.config/fish/completions/dibs.fish",
    )
    made.add_argument("shell", metavar="SHELL", choices=["bash", "zsh", "fish"], help="bash, zsh or fish")
    return made


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["names"]:
        return _put_names(" ".join(arguments[1:]))
    shell = parser().parse_args(arguments).shell
    made = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](list(_commands()))
    for line in made.splitlines():
        put(line)
    return OK


def _put_names(line: str) -> int:
    """Print the names of the locks that are held or waited for, on the store of that command line."""
    store = Parser("completion", add_help=False)
    add_store(store)
    try:
        words = shlex.split(line)
    except ValueError:  # a quote is still open
        words = line.split()
    options, _ = store.parse_known_args(words)
    with connect(options, "completion", retry=POLL_TIMEOUT) as client:
        for info in islice(client.locks(), _MOST_NAMES):
            put(info.name)
    return OK


def _commands() -> Iterator[Command]:
    from dibs.cli.main import COMMANDS  # noqa: PLC0415  (it imports the module of the command, which may be this one)

    for name, (module, text) in COMMANDS.items():
        actions = import_module(module).parser().actions
        options = [
            Option(action.option_strings, action.nargs != 0, (action.help or "").partition(" (default")[0])
            for action in actions
            if action.option_strings and action.help != argparse.SUPPRESS
        ]
        yield Command(name, text, options, any(action.dest in ("name", "prefix") for action in actions))


def _filled(script: str, commands: Sequence[Command], listed: str, options: str) -> str:
    named = " ".join(command.name for command in commands if command.takes_lock)
    return script.replace("@COMMANDS@", listed).replace("@OPTIONS@", options).replace("@NAMED@", named)


def _bash(commands: Sequence[Command]) -> str:
    cases = [
        f'        {command.name}) options="{_words(command)}" values="{_words(command, values=True)}" ;;'
        for command in commands
    ]
    return _filled(_BASH, commands, " ".join(command.name for command in commands), "\n".join(cases))


def _zsh(commands: Sequence[Command]) -> str:
    listed = [f"        {shlex.quote(f'{command.name}:{command.text}')}" for command in commands]
    cases = []
    for command in commands:
        described = " ".join(shlex.quote(f"{name}:{one.text}") for one in command.options for name in one.names)
        cases.append(f"        {command.name}) flags=({described}) values=({_words(command, values=True)}) ;;")
    return _filled(_ZSH, commands, "\n".join(listed), "\n".join(cases))


def _fish(commands: Sequence[Command]) -> str:
    listed = [
        f"complete -c dibs -n __fish_use_subcommand -a {command.name} -d {_in_fish(command.text)}"
        for command in commands
    ]
    options = []
    for command in commands:
        for one in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in one.names)
            value = " -r -F" if "--url-file" in one.names else " -x" if one.takes_value else ""
            options.append(f"complete -c dibs -n '__dibs_at {command.name}' {names}{value} -d {_in_fish(one.text)}")
    return _filled(_FISH, commands, "\n".join(listed), "\n".join(options))


def _words(command: Command, *, values: bool = False) -> str:
    return " ".join(name for one in command.options if one.takes_value or not values for name in one.names)


def _in_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
