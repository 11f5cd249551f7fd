"""A quorum: several independent stores, of which a majority decides. What decides is core/quorum.py; this is who.

`dibs.connect([url, url, url])`, or `quorum+redis://h1,h2,h3/0?options`, which is the same with one login, one path and
one set of options for all. A member is any store that counts leases by itself and can vote (the capabilities below).
The same store twice is refused: here by its name, and at first use by the id that is kept in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, cast

from dibs.core.cells import Cells
from dibs.core.deadline import seconds
from dibs.core.line import ATOMIC_TRY, LEASES, QUORUM, RECORDS, VOTES, Line, Me, Member, Store, Voter
from dibs.core.runtime import Runtime
from dibs.errors import Unsupported
from dibs.url import Host, Url

PREFIX = "quorum+"
_NEEDED = frozenset({LEASES, ATOMIC_TRY, VOTES})


class QuorumStore:
    """One client's view of all members."""

    capabilities: ClassVar[frozenset[str]] = frozenset({LEASES, QUORUM, RECORDS})

    def __init__(self, members: Sequence[Store], guard: object = None, shown: str | None = None) -> None:
        names = [member.shown for member in members]
        self.shown = shown or f"quorum of {', '.join(names)}"
        if not members:
            raise ValueError("a quorum needs members: give the URLs of three or five independent stores")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{self.shown}: {twice[0]} is given twice; give every independent store once")
        for member in members:
            if not member.capabilities >= _NEEDED:
                raise Unsupported(
                    f"{member.shown} cannot be a member of a quorum", store=self.shown,
                    step="use redis:// stores, each on its own server",
                )  # fmt: skip
        self.guard = None if guard is None else _seconds(guard)
        self.members = list(members)
        self._known: tuple[Me, list[Me]] | None = None

    @classmethod
    def of_url(cls, url: Url, options: dict[str, Any], make: Callable[[Url, dict[str, Any]], Store]) -> QuorumStore:
        asked = dict(options)
        guards = [value for key, value in url.query if key == "guard"]
        if len(guards) > 1 or (guards and "guard" in asked):
            raise ValueError(f"{url.shown}: guard= is given twice")
        guard = asked.pop("guard", guards[0] if guards else None)
        return cls([make(member, asked) for member in split(url)], guard, url.shown)

    def open(self, runtime: Runtime, me: Me) -> Line:
        self._no_line()

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        self._no_line()

    def open_members(self, runtime: Runtime, me: Me) -> list[Member]:
        """A member that tells its clients something tells it to an inbox of its own: each listens to one source."""
        if self._known is None or self._known[0] is not me:
            self._known = me, [Me(me.id, runtime.inbox(), me.lease, me.news) for _ in self.members]
        return [
            Member(member.shown, cast("Voter", member.open(runtime.aside(), own)))  # VOTES says that it is one
            for member, own in zip(self.members, self._known[1], strict=True)
        ]

    def close(self) -> None:
        for own in self._known[1] if self._known is not None else ():
            own.inbox.unlisten()
        for member in self.members:
            member.close()

    def before_fork(self) -> None:
        for member in self.members:
            member.before_fork()

    def after_fork(self, child: bool) -> None:
        for member in self.members:
            member.after_fork(child)

    def _no_line(self) -> NoReturn:
        raise Unsupported("a quorum has no queue of its own", store=self.shown, step="use one of its members")


def split(url: Url) -> list[Url]:
    """One URL for each host, with the same login, path and options.

    >>> from dibs.url import parse
    >>> [member.shown for member in split(parse("quorum+redis://:secret@h1,h2:7000,[::1]/2?guard=60"))]
    ['redis://h1/2', 'redis://h2:7000/2', 'redis://[::1]/2']
    """
    query = tuple((key, value) for key, value in url.query if key != "guard")
    scheme = url.scheme.removeprefix(PREFIX)

    def one(host: Host) -> Url:
        name, port = host
        written = f"[{name}]" if ":" in name else name
        return Url(scheme, url.username, url.password, written, port, (host,), url.path, query)

    if not url.hosts:
        raise ValueError(f"{url.shown}: the URL names no member: {url.scheme}://h1,h2,h3")
    return [one(host) for host in url.hosts]


def _seconds(guard: object) -> float:
    if isinstance(guard, str):
        try:
            guard = float(guard)
        except ValueError:
            raise ValueError("guard= must be a number of seconds") from None
    return seconds(guard, "guard")
