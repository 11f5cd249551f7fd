"""An election among processes: a leader that is killed, or stopped past its lease, and who follows meanwhile."""

from __future__ import annotations

import signal

from process.children import LASTING, STEADY, Child, Crew, clock

AT_ONCE = 15.0
"""With slack for busy cores: it cannot have been the lease."""


def members(crew: Crew, count: int, lease: float = STEADY) -> list[Child]:
    children = [crew.start("primitives", crew.url, lease) for _ in range(count)]
    for child in children:
        child.hear("ready")
    return children


def leader(follower: Child) -> tuple[int, int, float]:
    """The next that it sees: pid, token, and when."""
    pid, token, at = follower.hear("leader")
    return int(pid), int(token), float(at)


def follow_until(follower: Child, pid: int) -> tuple[int, float]:
    """Go on until it sees that process lead; gives token and instant."""
    while True:
        found, token, at = leader(follower)
        if found == pid:
            return token, at


def test_a_killed_leader_is_followed_by_the_next_in_line(crew: Crew) -> None:
    first, second, third, follower = members(crew, 4)
    old = int(first.ask("lead", "a", hear="leads")[0])
    follower.tell("follow", "a")
    assert leader(follower)[:2] == (first.pid, old)
    second.tell("lead", "a")
    crew.in_queue("a", 1, 1)
    third.tell("lead", "a")
    crew.in_queue("a", 1, 2)
    dead = first.kill()
    token, got = second.hear("leads")
    assert float(got) - dead < AT_ONCE
    assert int(token) > old
    seen, at = follow_until(follower, second.pid)
    assert seen == int(token)
    assert at - dead < AT_ONCE
    assert third.silent()
    assert second.ask("resign", "a", hear="resigned") == ["ok"]
    assert int(third.hear("leads")[0]) > int(token)
    follow_until(follower, third.pid)


def test_a_killed_leader_without_a_successor_is_seen_to_be_gone(crew: Crew) -> None:
    first, follower = members(crew, 2)
    token = int(first.ask("lead", "a", hear="leads")[0])
    follower.tell("follow", "a")
    assert leader(follower)[:2] == (first.pid, token)
    dead = first.kill()
    pid, none, at = leader(follower)
    assert (pid, none) == (0, 0)
    assert at - dead < AT_ONCE


def test_a_leader_stopped_past_its_lease_has_lost_and_leads_again_later(crew: Crew) -> None:
    """The loop of the documentation: it hears of the loss when it wakes, and stands in line again."""
    first, second, follower = members(crew, 3, LASTING)
    follower.tell("follow", "a")
    assert leader(follower)[0] == 0
    first.tell("keep_leading", "a")
    old = int(first.hear("leads")[0])
    assert leader(follower)[:2] == (first.pid, old)
    first.freeze()
    stopped = clock()
    token, got = second.ask("lead", "a", hear="leads")
    assert int(token) > old
    assert float(got) - stopped > LASTING / 4
    assert follow_until(follower, second.pid)[0] == int(token)
    first.signal(signal.SIGCONT)
    first.hear("lost")
    assert first.silent(), "it leads again only once the other is gone"
    assert second.ask("resign", "a", hear="resigned") == ["ok"]
    again = int(first.hear("leads")[0])
    assert again > int(token)
    assert follow_until(follower, first.pid)[0] == again
    assert first.ask("leave", hear="left") == []
    while leader(follower)[0] != 0:
        continue


def test_a_stopped_leader_that_nobody_succeeded_is_gone_too(crew: Crew) -> None:
    first, follower = members(crew, 2, LASTING)
    token = int(first.ask("lead", "a", hear="leads")[0])
    follower.tell("follow", "a")
    assert leader(follower)[:2] == (first.pid, token)
    first.freeze()
    assert leader(follower)[:2] == (0, 0)
    first.signal(signal.SIGCONT)
    assert first.ask("resign", "a", hear="resigned") == ["LockLost"]
