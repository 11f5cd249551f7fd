"""The fixtures in runs of pytest of their own: what fails, what passes, what is left behind."""

from __future__ import annotations

import pytest

import dibs.testing.kit  # noqa: F401  (a run within this process would forget what it was the first to import)

pytest_plugins = ["pytester"]
HEAD = """
import asyncio, os, threading, time
import pytest
import dibs, dibs.aio

def aside(work):
    thread = threading.Thread(target=work, name="aside")
    thread.start()
    thread.join()
"""


ARGS = ("-p", "no:dibs", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "dibs.testing.fixtures")
ALONE = (*ARGS, "-p", "no:asyncio")


def run(pytester: pytest.Pytester, code: str, *args: str) -> pytest.RunResult:
    pytester.makepyfile(HEAD + code)
    return pytester.runpytest_inprocess(*(args or ALONE))


def run_apart(pytester: pytest.Pytester, code: str) -> pytest.RunResult:
    """In a process of its own, where nothing else of this repository is loaded or runs."""
    pytester.makepyfile(HEAD + code)
    return pytester.runpytest_subprocess(*ALONE)


def test_code_that_ignores_a_loss_fails_and_code_that_respects_it_passes(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def settle(client, rows, careful):
    with client.lock("invoice", timeout=60) as hold:
        for row in rows:
            if careful:
                hold.check()
            row()

def second(client):
    return lambda: aside(lambda: settle(client, [lambda: None], careful=True))

def test_careless(dibs_client):
    with pytest.raises(dibs.LockLost):
        settle(dibs_client, [lambda: dibs_client.expire("invoice"), second(dibs_client)], careful=False)

def test_careful(dibs_client):
    with pytest.raises(dibs.LockLost):
        settle(dibs_client, [lambda: dibs_client.expire("invoice"), second(dibs_client)], careful=True)
    second(dibs_client)()

def test_expected(dibs_client):
    with pytest.raises(dibs.LockLost):
        settle(dibs_client, [lambda: dibs_client.expire("invoice"), second(dibs_client)], careful=False)
    assert [seen.name for seen in dibs_client.overlaps] == ["invoice"]
    dibs_client.overlaps.clear()
""",
    )
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            '"invoice": two holders at once: thread MainThread (token *) had lost it and went on while thread aside *',
            "A test that expects this looks at `overlaps` of its client and clears it.",
            "FAILED *::test_careless*",
        ]
    )


def test_a_test_that_fails_by_itself_shows_the_overlap_too(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_it(dibs_client):
    first = dibs_client.lock("invoice").acquire()
    dibs_client.expire("invoice")
    dibs_client.lock("invoice").acquire()
    assert 1 == 2
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*", '"invoice": two holders at once*'])


def test_an_overlap_in_the_teardown_of_another_fixture_is_an_error(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.fixture
def late(dibs_client):
    yield
    dibs_client.lock("invoice").acquire()
    dibs_client.expire("invoice")
    dibs_client.lock("invoice").acquire()

def test_it(late):
    pass
""",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(['*"invoice": two holders at once*'])


def test_nothing_is_left_between_tests(pytester: pytest.Pytester) -> None:
    result = run_apart(
        pytester,
        """
from dibs.backends.memory import _worlds
seen = []

def leave_everything(client):
    hold = client.lock("job", on_lost=seen.append).acquire()
    client.pause_watchdog()
    client.lose_reply("leave")
    client.clock.advance(20)
    client.steal("job")
    thread = threading.Thread(target=wait, args=[client])
    thread.start()
    seen.append(thread)
    while not client.inspect("busy").waiters:
        time.sleep(0.001)
    dibs_kept.append(client)

def wait(client):
    with pytest.raises(dibs.Closed):
        client.lock("busy").acquire()
        client.another().lock("busy").acquire()

dibs_kept = []

@pytest.mark.parametrize("round", range(2))
def test_leaves(dibs_client, round):
    assert not list(dibs_client.locks())
    assert dibs_client.cell("config").get() == (None, 0)
    dibs_client.cell("config").set(b"left", 0)
    assert os.environ["DIBS_URL"] == "memory://"
    leave_everything(dibs_client)

def test_leaves_in_asyncio(dibs_aio_client):
    async def main():
        await dibs_aio_client.lock("job").acquire()
        dibs_aio_client.pause_watchdog()
        asyncio.create_task(dibs_aio_client.lock("job").acquire())
        await asyncio.sleep(0)
    asyncio.run(main())

def test_finds_nothing():
    assert "DIBS_URL" not in os.environ
    assert len(_worlds) == 1
    assert not any(world.queues or world.inboxes or world.cells or world.tombs for world in _worlds.values())
    end = time.monotonic() + 60
    while any("dibs" in line for frames in stacks() for line in frames):
        assert time.monotonic() < end, stacks()
        time.sleep(0.01)
    for one in seen:
        if isinstance(one, threading.Thread):
            one.join(60)
            assert not one.is_alive()
    for client in dibs_kept:
        with pytest.raises(dibs.Closed):
            client.lock("job").acquire()
    assert dibs.connect("memory://")._core.runtime.__class__.__name__ == "ThreadRuntime"

def stacks():
    import sys, traceback
    me = threading.get_ident()
    return [traceback.format_stack(frame) for ident, frame in sys._current_frames().items() if ident != me]
""",
    )
    result.assert_outcomes(passed=4)


def test_the_users_own_address_comes_back(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "memory://own")
    run(
        pytester,
        """
def test_within(dibs_client):
    assert os.environ["DIBS_URL"] == "memory://"
    assert "memory://:" in repr(dibs.connect())

def test_after():
    assert os.environ["DIBS_URL"] == "memory://own"
""",
    ).assert_outcomes(passed=2)


def test_a_client_from_before_shares_the_store_on_the_real_clock(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
before = dibs.connect("memory://")
before.lock("left").acquire()

def test_it(dibs_client):
    assert not dibs_client.lock("left").locked()
    hold = dibs_client.lock("job").acquire()
    assert before.lock("job").acquire(timeout=0) is None
    hold.release()
    theirs = before.lock("job", lease=300, renew=False).acquire()
    dibs_client.clock.advance(299)
    assert theirs.remaining > 100
    theirs.release()
""",
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("mark", "args"),
    [("anyio", ALONE), ("asyncio", (*ARGS, "-o", "asyncio_default_fixture_loop_scope=function"))],
)
def test_under_plugins_that_run_coroutines(pytester: pytest.Pytester, mark: str, args: tuple[str, ...]) -> None:
    run(
        pytester,
        f"""
pytestmark = pytest.mark.{mark}

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def test_it(dibs_aio_client, dibs_client):
    async with dibs_aio_client.lock("job") as hold:
        dibs_aio_client.clock.advance(3600)
        hold.check()
        assert dibs_client.lock("job").acquire(timeout=0) is None

async def test_left_open(dibs_aio_client):
    assert await dibs_aio_client.lock("job").acquire(timeout=0)
    dibs_aio_client.pause_watchdog()

async def test_overlap(dibs_aio_client):
    await dibs_aio_client.lock("job").acquire()
    dibs_aio_client.expire("job")
    await dibs_aio_client.lock("job").acquire()
""",
        *args,
    ).assert_outcomes(passed=2, failed=1)


def test_a_forked_child_begins_anew(pytester: pytest.Pytester) -> None:
    run_apart(
        pytester,
        """
def test_it(dibs_client):
    hold = dibs_client.lock("job").acquire()
    busy, done = threading.Event(), threading.Event()

    def turn():
        with dibs_client._kit.stage.still():
            busy.set()
            done.wait()

    thread = threading.Thread(target=turn)
    thread.start()
    busy.wait()
    child = os.fork()
    done.set()
    if child == 0:
        try:
            mine = dibs_client.lock("job").acquire(timeout=0)
            dibs_client.clock.advance(3600)
            mine.check()
            mine.release()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    hold.check()
    hold.release()
""",
    ).assert_outcomes(passed=1)
