"""What a server's refusal is taken for, also as servers before Redis 7 word it, who wrap what a command within a script
was refused with; and what of it is shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dibs
from dibs.backends.redis.errors import LATER, Refusal, final
from dibs.testing.contract.harness import World
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from lab.witness import apis_of

both_apis = apis_of("redis", "redis://127.0.0.1:1")

_RUNNING = "ERR Error running script (call to f_5ac3cc76b5c1ad1b8a3a8f1b1c1f0b3b5d3b2a10): @user_script:{0}: "
CHECKED = _RUNNING + "@user_script: {0}: {1}"
"""Of what the server looks at before it runs a command within a script."""
ANSWERED = _RUNNING + "{1}"
"""Of what the command itself says."""
BEFORE_7 = {
    "OOM": CHECKED.format(187, "-OOM command not allowed when used memory > 'maxmemory'.  "),
    "READONLY": CHECKED.format(187, "-READONLY You can't write against a read only replica.  "),
    "NOREPLICAS": CHECKED.format(187, "-NOREPLICAS Not enough good replicas to write.  "),
    "MISCONF": CHECKED.format(187, "-MISCONF Errors writing to the AOF file: No space left on device  "),
    "WRONGTYPE": ANSWERED.format(22, "WRONGTYPE Operation against a key holding the wrong kind of value"),
}
SINCE_7 = {
    "OOM": "OOM command not allowed when used memory > 'maxmemory'. script: 5ac3cc76, on @user_script:187.",
    "READONLY": "READONLY You can't write against a read only replica. script: 5ac3cc76, on @user_script:187.",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "NOSCRIPT": "NOSCRIPT No matching script. Please use EVAL.",
    "MOVED": "MOVED 3999 127.0.0.1:6381",
}
DENIED = [
    CHECKED.format(22, "The user executing the script can't run this command or subcommand"),
    CHECKED.format(22, "The user executing the script can't access at least one of the keys"),
    "NOPERM this user has no permissions to run the 'evalsha' command",
]
DAMAGED = [
    ANSWERED.format(29, "user_script:29: dibs-damaged top"),
    "ERR user_script:29: dibs-damaged top script: 5ac3cc76, on @user_script:29.",
]


@pytest.mark.parametrize(("code", "text"), [*BEFORE_7.items(), *SINCE_7.items()])
def test_its_code(code: str, text: str) -> None:
    assert Refusal(text).code == code


@pytest.mark.parametrize("code", sorted(LATER & set(BEFORE_7)))
def test_what_passes_is_asked_again_also_where_it_is_wrapped(code: str) -> None:
    error = final(Refusal(BEFORE_7[code]), b"dibs:a|line")
    assert isinstance(error, dibs.StoreUnavailable)
    assert code in str(error)
    assert "damaged" not in str(error)


@pytest.mark.parametrize("text", DENIED)
def test_a_right_that_is_missing(text: str) -> None:
    error = final(Refusal(text), b"dibs:a|line")
    assert not isinstance(error, dibs.StoreUnavailable)
    assert "dibs doctor" in str(error)


@pytest.mark.parametrize("text", [*DAMAGED, BEFORE_7["WRONGTYPE"]])
def test_a_damaged_key_is_named(text: str) -> None:
    error = final(Refusal(text), b"dibs:a|line")
    assert not isinstance(error, dibs.StoreUnavailable)
    assert "damaged" in str(error)
    assert "dibs:a|line" in str(error)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """It knows no EVALSHA, and repeats what it was sent."""
    require("redis")
    with Server(Redis('rename-command EVALSHA ""')) as made:
        yield made


@both_apis
async def test_what_we_sent_is_not_shown(world: World, server: Server) -> None:
    """A claim's id is among it: who knows that can give it back."""
    client, ana = world.client(server.url()), world.actor("ana")
    with pytest.raises(dibs.StoreError, match=r"unknown command.*EVALSHA") as caught:
        await ana(lambda: client.lock("a").acquire(timeout=30))
    text = str(caught.value)
    assert "with args" not in text
    assert "|line" not in text, "the arguments begin with the script's name and the key"
