"""Logins, certificates, hostile names and rows on MariaDB (cases 9, 10, 24, 26 to 29): refused in time, with reason,
and no secret shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dibs
from lab import splitters
from lab.faults import Cut, at_message
from lab.proxy import UP, Proxy
from lab.servers import certificates, ports, shared_mariadb
from lab.servers.certificates import Certificates
from lab.servers.mariadb import NAME, MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server
from security.test_access import OTHER, SECRET, is_final, refused
from store.mysql.rows import Raw


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def secure(pems: Certificates) -> Iterator[Server]:
    require("mariadb")
    with Server(MariaDB(tls=pems, insist=True)) as made:
        yield made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_mariadb.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    with closing(Raw(shared_mariadb.mariadb().port, url.partition("prefix=")[2])) as made:
        yield made


def at(server: Server, password: str = NAME, user: str = NAME) -> str:
    return f"mysql://{user}:{password}@{ports.HOST}:{server.port}/{NAME}"


@pytest.mark.parametrize("user", [NAME, "nobody"])
def test_a_wrong_password(user: str) -> None:
    error = refused(at(shared_mariadb.mariadb(), OTHER, user))
    assert is_final(error)
    assert "denied" in str(error)


def test_the_right_one_gets_in(url: str) -> None:
    with dibs.connect(url) as client, client.lock("a", timeout=10) as hold:
        hold.check()


def test_an_authority_that_nobody_named(secure: Server) -> None:
    error = refused(at(secure), tls="on")
    assert is_final(error)
    assert "ca=" in str(error)


def test_tls_with_the_authority_that_is_named(secure: Server, pems: Certificates) -> None:
    with dibs.connect(at(secure), ca=pems.authority.certificate) as client, client.lock("a", timeout=10) as hold:
        hold.check()


def test_a_certificate_that_is_not_to_be_trusted(secure: Server, pems: Certificates) -> None:
    """Signed by another than the one that is named; or for another host."""
    other = refused(at(secure, SECRET), ca=pems.self_signed.certificate)
    with Server(MariaDB(tls=replace(pems, server=pems.wrong_host))) as elsewhere:
        wrong = refused(at(elsewhere, SECRET), ca=pems.authority.certificate)
    for error in (other, wrong):
        assert is_final(error)
        assert "certificate" in str(error)


def test_tls_to_a_server_that_speaks_in_clear(pems: Certificates) -> None:
    """Nothing of the login is said there."""
    server = shared_mariadb.mariadb()
    with Proxy((ports.HOST, server.port), splitter=splitters.mysql) as proxy:
        proxy.add(Cut(at_message(match=lambda text: NAME.encode() in text)), UP)
        there = f"mysql://{NAME}:{SECRET}@{ports.HOST}:{proxy.port}/{NAME}"
        refused(there, ca=pems.authority.certificate)
        said, _ = proxy.total(UP, "dropped")
        assert not said, "the login was on its way"


def test_no_tls_to_a_server_that_speaks_nothing_else(secure: Server) -> None:
    refused(at(secure), tls="off")


ODD = [
    "a",
    "A",
    "á",
    "a ",
    "a\u0301",
    "\uff41",
    "ß",
    "ss",
    "a%",
    "a_",
    "\uff21",
    "😀",
    "'; DROP TABLE dibs_claims; --",
    "x'61'",
    "\\",
]


def test_names_that_differ_in_case_accents_or_a_space_are_different_locks(url: str) -> None:
    with dibs.connect(url) as client:
        holds = [client.lock(name).acquire(timeout=0) for name in ODD]
        assert all(holds), "one of them is taken for another"
        assert {info.name for info in client.locks()} == set(ODD)
        assert [info.name for info in client.locks("a%")] == ["a%"]
        for hold in holds:
            assert hold is not None
            hold.release()


@pytest.mark.parametrize("length", [64, 65, 192, 193, 512])
def test_long_names_work(url: str, length: int) -> None:
    """Longer than a user lock's may be, than an index's was; two that differ in their last letter are two."""
    one, two = "n" * (length - 1) + "1", "n" * (length - 1) + "2"
    with dibs.connect(url) as client, client.lock(one), client.lock(two):
        assert client.lock(one).acquire(timeout=0) is None
        assert sorted(info.name for info in client.locks()) == [one, two]


HOSTILE: dict[str, dict[str, Any]] = {
    "less than no weight": {"weight": -5},
    "no capacity": {"capacity": 0},
    "a huge weight": {"weight": 2**62},
    "for ever": {"until": 2**62, "lease": 2**61},
    "another kind": {"kind": b"\xff\xfe\x00"},
    "no JSON": {"about": b"\xff{{{"},
    "held in the year 300000": {"held": 2**62, "asked": -(2**62)},
}


def granted(ask: Callable[[], object]) -> object:
    """What is answered; an error names the lock."""
    try:
        return ask()
    except (dibs.StoreError, dibs.Mismatch) as error:
        if '"a"' not in str(error):
            raise
        return None


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_row_grants_nothing_and_crashes_nobody(url: str, raw: Raw, case: str) -> None:
    """Whoever comes is refused, told that it is busy, or stands behind; who uses another name is served."""
    with dibs.connect(url) as client, dibs.connect(url) as other:
        hold = client.lock("a", lease=60).acquire()
        assert hold is not None
        columns = HOSTILE[case]
        key = raw.key("dibs:a")
        raw.ask(f"UPDATE dibs_claims SET {', '.join(f'{name} = %s' for name in columns)} WHERE name = %s",
                *columns.values(), key)  # fmt: skip
        assert not granted(lambda: other.lock("a").acquire(timeout=0))
        with other.lock("b", timeout=10):
            assert [info.name for info in other.locks("b")] == ["b"]
        granted(lambda: other.inspect("a"))
        raw.ask("DELETE FROM dibs_claims WHERE name = %s", key)
        with other.lock("a", timeout=10):
            pass


def test_a_row_that_lasts_for_ever_can_be_broken(url: str, raw: Raw) -> None:
    with dibs.connect(url) as client:
        hold = client.lock("a", lease=60, renew=False).acquire()
        assert hold is not None
        raw.ask("UPDATE dibs_claims SET until = %s, lease = %s WHERE name = %s", 2**62, 2**61, raw.key("dibs:a"))
        client.break_("a", token=hold.token)
        with client.lock("a", timeout=10):
            pass


def test_hostile_values_of_cells(url: str, raw: Raw) -> None:
    with dibs.connect(url) as client:
        cell = client.cell("a")
        cell.set(b"1", 0)
        raw.ask("UPDATE dibs_cells SET value = NULL WHERE name = %s", raw.key("dibs:a"))
        with pytest.raises(dibs.StoreError, match='"a"'):
            cell.get()
        fence = client.fence("f")
        fence.admit(5)
        for value in (b"-7", b"x", b"9" * 30, b""):
            raw.ask("UPDATE dibs_cells SET value = %s WHERE name = %s", value, raw.key("dibs:f"))
            with pytest.raises(dibs.StoreError):
                fence.admit(6)
