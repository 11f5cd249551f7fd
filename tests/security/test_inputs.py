"""Odd names that are allowed, also such that differ in case, accents or a space only: each is a lock like any other, on
every store. Bad input: tests/core/test_refused.py."""

from __future__ import annotations

from dibs.testing.contract.harness import World

ODD_NAMES = [
    "x') ; DROP TABLE locks;--", "x\" OR 1=1 --", "../../etc/passwd", "/etc/passwd", ".", "..", "~", "a/b", "a//b",
    "🔒", "👨‍👩‍👧", "שלום", "\u202eevil", "é", "e\u0301", "%", "%s", "%3A", "*", "?", "[a-z]", "_",
    "\\", "\\\\", "'", '"', "`",
    "$(reboot)", "${HOME}", "{0}", "{name}", "a:b", "a#0", ":", "#", " a", "a ", "A", "a", "x" * 512, "x" * 511,
    "€" * 170, "CON", "null", "0", "-1", "--help", "\ufeffa", "a\u200bb", "\uff41",
    "zookeeper", "/a//b", "lock:*", "lock?[ab]", "{a}b{c}", "q", "q:1", "q#1", "q%3A1", ":memory:",
    "file:x?mode=memory", "__proto__", "<img src=x onerror=alert(1)>", "y" * 65, "z" * 193, "\U0001f512" * 128,
    "á", "a\u0301", "ß", "ss", "a%", "a_", "\uff21", "'; DROP TABLE dibs_claims; --", "x'61'", "n" * 511 + "1",
    "n" * 511 + "2",
]  # fmt: skip
PREFIXES = [*ODD_NAMES[:8], "%", "_", "*", "?", "[a-z]", "\\", "q"]


async def test_odd_names_are_locks_like_others(world: World) -> None:
    """Also as prefixes of a listing, and as texts beside a claim."""
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    holds = {}
    for name in ODD_NAMES:
        lock = client.lock(name, owner=name, info={name: name})
        holds[name] = await ana(lambda lock=lock: lock.acquire(timeout=0))
        assert holds[name] is not None, f"{name!r} is not a lock of its own"
    for name, hold in holds.items():
        assert await bob(lambda name=name: other.lock(name).acquire(timeout=0)) is None, name
        info = await world.inspect(other, name)
        (holder,) = info.holders
        assert (info.name, holder.token, hold.owner) == (name, hold.token, name)
        assert (holder.owner, dict(holder.info)) == (name, {name: name})
    assert sorted(info.name for info in await world.locks(other)) == sorted(ODD_NAMES)
    for prefix in PREFIXES:
        found = sorted(info.name for info in await world.locks(other, prefix))
        assert found == sorted(name for name in ODD_NAMES if name.startswith(prefix)), prefix
    for hold in holds.values():
        await ana(hold.release)
    assert not await world.locks(other)
