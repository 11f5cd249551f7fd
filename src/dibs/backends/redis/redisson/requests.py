"""The requests that run the scripts: packed once for each lock object on the free path, else one by one."""

from __future__ import annotations

from dibs.backends.redis.redisson.forms import FORMS, LATCH_MS, Ask, Form, Terms, Words
from dibs.backends.redis.redisson.names import HOLDER, Names, holder_id
from dibs.backends.redis.scripts import BETWEEN, DIGITS, LARGE, MICROSECONDS, ScriptCall, pack
from dibs.core.queue import Place
from dibs.core.rule import Claim

_HEX, _WHO, _TIME = b"\x00" * 32, b"\x01", b"t" * DIGITS
"""Stand-ins. No name contains control characters."""


class PackedRequests:
    """The packed requests of one lock object: see `Packed` in free_path.py. A request has gaps for the id of the claim
    in hex (in the latch), for the holder id, and for the time."""

    __slots__ = ("_client", "_done", "_is_by_holder", "_join", "_leave", "is_large")

    def __init__(self, claim: Claim, names: Names, terms: Terms, client: bytes) -> None:
        form = FORMS[claim.kind]
        self._client, self._is_by_holder = client, form.is_by_holder
        who = _WHO * (HOLDER if form.is_by_holder else len(claim.id))
        latch = names.latch + _HEX
        keys, words = (*form.join_keys(names), latch), form.join_words(Ask(names, claim, terms, "n"))
        join = pack(("EVALSHA", form.join.sha, len(keys), *keys, *words, who, _TIME))
        self._join = _gaps(join.removesuffix(BETWEEN + _TIME + b"\r\n"), who)
        keys, words = (*form.leave_keys(names), latch), form.leave_words(Ask(names, claim, terms, "a"))
        self._leave = _gaps(pack(("EVALSHA", form.leave.sha, len(keys), *keys, *words, who)), who)
        self._done = deletion(names, _HEX).split(_HEX)
        self.is_large = len(join) > LARGE

    def join(self, claim: Claim, place: Place, offset: float) -> bytes:
        before, between = self._join
        by = int((claim.by + offset) * MICROSECONDS)
        return b"%b%b%b%b%b%016d\r\n" % (before, claim.id.hex().encode(), between, self._who(claim), BETWEEN, by)

    def leave(self, claim: Claim) -> bytes:
        before, between = self._leave
        return b"%b%b%b%b\r\n" % (before, claim.id.hex().encode(), between, self._who(claim))

    def farewell(self, claim: Claim) -> bytes:
        before, after = self._done
        return b"%b%b%b" % (before, claim.id.hex().encode(), after)

    def _who(self, claim: Claim) -> bytes:
        return holder_id(self._client, claim.id) if self._is_by_holder else claim.id


def _gaps(request: bytes, who: bytes) -> list[bytes]:
    """The parts before and after the id of the claim; the holder id comes last."""
    before, _, rest = request.removesuffix(b"\r\n").removesuffix(who).partition(_HEX)
    return [before, rest]


def deletion(names: Names, claim_hex: bytes) -> bytes:
    """Delete a latch."""
    return pack(("DEL", names.latch + claim_hex))


def shortening(names: Names, claim_hex: bytes) -> bytes:
    """Let a mark end soon. It must outlive the release: an interrupt may repeat it."""
    return pack(("PEXPIRE", names.latch + claim_hex, LATCH_MS))


class Calls:
    """The requests of one client, made when they are needed."""

    def __init__(self, client: bytes) -> None:
        self._client = client

    def who(self, form: Form, claim: Claim) -> bytes:
        return holder_id(self._client, claim.id) if form.is_by_holder else claim.id

    def join(self, claim: Claim, names: Names, terms: Terms, place: str, by: float) -> ScriptCall:
        form = FORMS[claim.kind]
        words: Words = (*form.join_words(Ask(names, claim, terms, place)), self.who(form, claim))
        first, *more = form.join_keys(names)
        return ScriptCall(form.join, first, words, by, (*more, self.latch(names, claim)))

    def leave(self, claim: Claim, names: Names, terms: Terms, answered: bool) -> ScriptCall:
        form = FORMS[claim.kind]
        ask = Ask(names, claim, terms, "a" if answered else "u")
        words: Words = (*form.leave_words(ask), self.who(form, claim))
        first, *more = form.leave_keys(names)
        return ScriptCall(form.leave, first, words, more=(*more, self.latch(names, claim)))

    def latch(self, names: Names, claim: Claim) -> bytes:
        return names.latch + claim.id.hex().encode()

    def channel(self, claim: Claim, names: Names) -> bytes:
        form = FORMS[claim.kind]
        channel = form.channel(names)
        return channel + b":" + holder_id(self._client, claim.id) if form.has_own_channels else channel
