"""Prometheus's text format, read strictly."""

from __future__ import annotations

import re

_LINE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\} (\S+)')
_LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\[\\n"])*)"')

Samples = dict[tuple[str, str], float]


def read(text: str) -> Samples:
    """By metric and group, of one store. Each metric has a HELP and a TYPE before its first sample."""
    found: Samples = {}
    known: dict[str, str] = {}
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert known.pop(name) == "help"
            known[name] = kind
        elif line.startswith("# HELP "):
            known[line.split(" ")[2]] = "help"
        else:
            match = _LINE.fullmatch(line)
            assert match is not None, line
            name, labels, value = match.groups()
            assert (known[name] == "counter") == name.endswith("_total")
            pairs = {key: re.sub(r"\\(.)", r"\1", said) for key, said in _LABEL.findall(labels)}
            key = name.removeprefix("dibs_store_"), pairs.get("group", "")
            assert key not in found, f"twice: {line}"
            found[key] = float(value)
    return found
