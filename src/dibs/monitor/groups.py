"""The group of a lock name: a label with few values, for metrics.

A metric with the name as a label would have one time series per invoice. By default a name becomes its first part, and
digits become `*`. Patterns or a function of the caller replace that rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

MOST = 200
"""Most groups of the default rule in one process; further names become `other`."""
OTHER = "other"
_FIRST_PART = re.compile(r"[^:/|]*")
_DIGITS = re.compile(r"[0-9]+")
_LONGEST = 64

Group = Callable[[str], str] | Sequence[str] | None


def grouping(group: Group = None) -> Callable[[str], str]:
    """A function from name to group, with a cache. None: the default rule. Patterns: the first that matches is the
    group, else `other`. A function: its result, such as the name itself with `str`."""
    if group is None:
        rule: Callable[[str], str] = template
    elif callable(group):
        rule = group
    else:
        if isinstance(group, str) or not all(isinstance(one, str) for one in group):
            raise TypeError(f"group must be a function or a list of patterns, not {group!r}")
        patterns = tuple(group)

        def rule(name: str) -> str:
            return next((one for one in patterns if fnmatchcase(name, one)), OTHER)

    seen: set[str] = set()
    known: dict[str, str] = {}

    def group_of(name: str) -> str:
        found = known.get(name)
        if found is None:
            found = rule(name)
            if group is None and found not in seen:
                if len(seen) >= MOST:
                    found = OTHER
                else:
                    seen.add(found)
            if len(known) >= 10_000:  # names come and go: the cache starts anew
                known.clear()
            known[name] = found
        return found

    return group_of


def template(name: str) -> str:
    """The default rule.

    >>> [template(name) for name in ("invoice:42", "shop:invoice:42", "deploy", "job-17", "users/ana")]
    ['invoice:*', 'shop:*', 'deploy', 'job-*', 'users/*']
    """
    first = _FIRST_PART.match(name)
    end = 0 if first is None else first.end()
    found = _DIGITS.sub("*", name[:end])[:_LONGEST]
    return f"{found}{name[end]}*" if end < len(name) else found
