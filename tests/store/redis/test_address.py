"""URLs and options of the store: they are parsed without I/O, errors name the option, and no error shows a secret.
Connections made from them are tried on real servers."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError

from dibs._shared import has_secret, without_secret
from dibs.backends.redis.address import Address
from dibs.backends.redis.discovery import ask, translated
from dibs.errors import StoreError, StoreUnavailable
from dibs.url import parse
from lab.servers.certificates import Certificates
from lab.servers.programs import ask as run
from lab.servers.redis import Redis
from lab.servers.supervisor import Server

PATIENCE = 30.0


def address(text: str, **options: Any) -> Address:
    return Address.of(parse(text), **options)


def refusal(text: str, **options: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        address(text, **options)
    assert caught.value.__context__ is None
    return "".join(traceback.format_exception_only(caught.value))


def connection(text: str, **options: Any) -> AbstractConnection:
    made = address(text, **options)
    return made.connection(made.endpoints[0], PATIENCE)


def failure(made: Address) -> StoreError:
    with pytest.raises(RedisError) as caught:
        ask(made.connection(made.endpoints[0], PATIENCE), "PING")
    return translated(caught.value, made.endpoints[0])


def test_servers_and_services() -> None:
    for text, *expected in (
        ("redis://h1", "single", (("h1", 6379),), None),
        ("rediss://h1:6380/3", "single", (("h1", 6380),), None),
        ("redis://[::1]:6380", "single", (("::1", 6380),), None),
        ("unix:///run/a%20b.sock?db=2", "single", ("/run/a b.sock",), None),
        ("unix://ana:pw@/run/redis.sock", "single", ("/run/redis.sock",), None),
        ("redis+sentinel://h1,h2:26380/main", "sentinel", (("h1", 26379), ("h2", 26380)), "main"),
        ("rediss+sentinel://h1/ma%20in/4", "sentinel", (("h1", 26379),), "ma in"),
        ("redis+cluster://h1,h2:7000", "cluster", (("h1", 6379), ("h2", 7000)), None),
        ("rediss+cluster://h1/", "cluster", (("h1", 6379),), None),
    ):
        found = address(text)
        assert [found.topology, found.endpoints, found.service] == expected, text
        assert (found.shown, found.replicas, found.wake) == (parse(text).shown, 0, "messages")


def test_a_connection_is_fresh_and_plays_no_tricks_of_its_own() -> None:
    for text, kind, db in (
        ("redis://h1/7", Connection, 7),
        ("redis://h1?db=7", Connection, 7),
        ("rediss://h1", SSLConnection, 0),
        ("unix:///run/redis.sock?db=1", UnixDomainSocketConnection, 1),
        ("redis+sentinel://h1/main/2", Connection, 2),
        ("rediss+cluster://h1", SSLConnection, 0),
    ):
        made = connection(text)
        assert (type(made), made.db, made.protocol) == (kind, db, 2), text
        assert made.socket_timeout == made.socket_connect_timeout == PATIENCE
        assert (made.retry.get_retries(), made.health_check_interval, made.encoder.decode_responses) == (0, 0, False)
        assert not made.is_connected
        assert connection(text) is not made


def test_the_login() -> None:
    for login, *expected in (
        ("", None, None),
        ("ana:s3%3Acr%40et@", "ana", "s3:cr@et"),
        (":pw@", None, "pw"),
        ("ana@", "ana", None),  # ACL knows users without a password
        ("ana:@", "ana", None),
        (":@", None, None),
    ):
        for text in (f"redis://{login}h1", f"unix://{login}/run/redis.sock"):
            made = connection(text)
            assert [made.username, made.password] == expected, text


def test_the_sentinels_have_a_login_of_their_own() -> None:
    made = address("redis+sentinel://ana:pw@h1/main/3")
    plain = made.sentinel_connection(("h1", 26379), PATIENCE)
    assert (plain.username, plain.password, plain.db) == (None, None, 0)
    for made in (
        address("redis+sentinel://ana:pw@h1/main", sentinel_username="bob", sentinel_password="s3"),
        address("redis+sentinel://ana:pw@h1/main?sentinel_username=bob&sentinel_password=s3"),
    ):
        there = made.sentinel_connection(("h1", 26379), PATIENCE)
        assert (there.username, there.password) == ("bob", "s3")
        assert (made.connection(("h2", 6379), PATIENCE).username) == "ana"
    assert isinstance(address("rediss+sentinel://h1/main").sentinel_connection(("h1", 1), PATIENCE), SSLConnection)


def test_an_option_is_a_keyword_or_stands_in_the_query() -> None:
    for option, value, text in (("replicas", 2, "redis://h1"), ("wake", "spin", "redis+sentinel://h1/m")):
        written = f"{option}={value}"
        assert getattr(address(text, **{option: value}), option) == value
        assert getattr(address(f"{text}?{written}"), option) == value
        assert getattr(address(f"{text}?{written}", **{option: None}), option) == value
        assert f"{option}= is given twice" in refusal(f"{text}?{written}&{written}")
        assert f"{option}= is given twice" in refusal(f"{text}?{written}", **{option: value})


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("redis://", {}, "names no server: redis://host:6379/0"),
    ("redis+cluster://", {}, "names no server: redis+cluster://h1,h2,h3"),
    ("redis://ana:s3cr3t@h 1", {}, "is not a host name"),
    ("redis://ana:s3cr3t@h1,h2", {}, "write redis+sentinel://, redis+cluster:// or quorum+redis://"),
    ("redis://h1/cache", {}, "the database must be a whole number"),
    ("redis://h1/0/1", {}, "too many parts in the path: redis://host:6379/0"),
    ("redis://h1/0?db=0", {}, "the database is given twice"),
    ("redis://h1/0", {"db": 1}, "the database is given twice"),
    ("redis://h1?db=s3cr3t", {}, "db= must be a whole number"),
    ("redis+cluster://h1/0", {}, "a cluster has only one database"),
    ("redis+cluster://h1?db=0", {}, "no option db= goes into the URL"),
    ("redis+cluster://h1", {"db": 0}, "no store option 'db'"),
    ("redis+sentinel://h1", {}, "which service? Write redis+sentinel://h1,h2,h3/service"),
    ("redis+sentinel://h1/main/x", {}, "the database must be a whole number"),
    ("redis+sentinel://h1/main", {"sentinel_username": "s3cr3t"}, "give sentinel_password= too"),
    ("redis+sentinel://h1/main", {"sentinel_password": 5}, "sentinel_password= must be a str, not int"),
    ("redis+sentinel://h1/main?sentinel_password=", {}, "sentinel_password= is empty"),
    ("redis+sentinel://h1/main?sentinel_password=s3cr3t&sentinel_password=s3cr3t", {}, "is given twice"),
    ("redis://h1", {"sentinel_password": "s3cr3t"}, "no store option 'sentinel_password'"),
    ("unix://", {}, "names no socket: unix:///path/of.sock"),
    ("unix://ana:s3cr3t@host/run/redis.sock", {}, "names no host"),
    (f"unix:///{'s3cr3t' * 20}", {}, "at most 107 bytes"),
    ("unix:///run/redis.sock?ca=/s3cr3t", {}, "no option ca="),
    ("redis://h1?wake=s3cr3t", {}, 'wake= must be "messages" or "spin"'),
    ("redis://h1", {"wake": True}, 'wake= must be "messages" or "spin"'),
    ("redis://h1?replicas=s3cr3t", {}, "replicas= must be a whole number"),
    ("redis://h1?replicas=%D9%A1", {}, "replicas= must be a whole number"),
    ("redis://h1", {"replicas": True}, "replicas= must be a whole number"),
    ("redis://h1", {"replicas": -1}, "replicas= must be a whole number"),
    ("redis://h1?password=s3cr3t", {}, "do not put the login into the query: redis://user:password@h1"),
    ("unix:///run/redis.sock?password=s3cr3t", {}, "unix://user:password@/run/redis.sock"),
    ("redis://h1", {"password": "s3cr3t"}, "no store option 'password'; there are prefix=, replicas="),
    ("redis://h1?s3cr3t", {}, "the URL has an unknown option"),
    ("redis://h1?socket_timeout=5", {}, "no option socket_timeout= goes"),
    ("redis://h1?ca=/s3cr3t.pem", {}, "ca= has no effect without TLS: write rediss://"),
    ("redis+cluster://h1?ca=/s3cr3t.pem", {}, "write rediss+cluster://"),
    ("rediss://h1?key=s3cr3t", {}, "give certificate= too"),
    ("rediss://h1", {"ca": b"s3cr3t"}, "ca= must be the path of a file, not bytes"),
    ("rediss://h1", {"ssl_context": object()}, "no store option 'ssl_context'"),
    ("redis://ana:s3cr3t\udc80@h1", {}, "must be UTF-8"),
    ("redis+sentinel://h1/main", {"sentinel_password": "s3cr3t\udc80"}, "must be UTF-8"),
]  # fmt: skip


def test_what_cannot_be_said() -> None:
    for text, options, why in WRONG:
        said = refusal(text, **options)
        assert why in said, (text, options)
        assert "s3cr3t" not in said


def test_which_options_are_secrets() -> None:
    for text, rest in (
        ("redis+sentinel://ana:pw@h1/main?sentinel_password=pw&wake=spin", "redis+sentinel://ana@h1/main?wake=spin"),
        ("rediss://ana:pw@h1/0?key=/k.pem&certificate=/c.pem", "rediss://ana@h1/0?key=/k.pem&certificate=/c.pem"),
        ("rediss+cluster://h1?key=/k.pem&certificate=/c.pem", None),
    ):
        assert has_secret(text) == (rest is not None), text
        assert without_secret(text) == (rest or text)


# On real servers


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server with a password and users, and its Unix socket."""
    path = tmp_path_factory.mktemp("s") / "r.sock"
    users = {"ana": ">pw-of-ana ~* &* +@all", "guest": "nopass ~* +ping", "mute": ">pw-of-mute ~* -@all"}
    with Server(Redis(f"unixsocket {path}", password="hunter2", users=users)) as server:
        yield server, path


def test_logins_and_databases_are_honoured(locked: tuple[Server, Path]) -> None:
    server, path = locked
    for text, user, db in [
        (f"redis://:hunter2@127.0.0.1:{server.port}", "default", 0),
        (f"redis://ana:pw-of-ana@127.0.0.1:{server.port}/3", "ana", 3),
        (f"redis://ana:pw-of-ana@localhost:{server.port}?db=5", "ana", 5),
        (f"unix://ana:pw-of-ana@{path}?db=2", "ana", 2),
    ]:
        facts = dict(word.split("=", 1) for word in ask(connection(text), "CLIENT", "INFO").decode().split())
        assert (facts["user"], facts["db"]) == (user, str(db)), text
    assert ask(connection(f"redis://guest@127.0.0.1:{server.port}"), "PING") == b"PONG"


def test_a_login_or_a_database_that_will_not_do(locked: tuple[Server, Path], tmp_path: Path) -> None:
    server, path = locked
    for text, why in [
        (f"redis://:s3cr3t@127.0.0.1:{server.port}", "refuses the login: invalid username-password pair"),
        (f"redis://ana:s3cr3t@127.0.0.1:{server.port}", "Next: check user and password"),
        (f"redis://127.0.0.1:{server.port}", "refuses the login: Authentication required"),
        (f"redis://mute:pw-of-mute@127.0.0.1:{server.port}", "Next: give this user the rights"),
        (f"redis://ana:pw-of-ana@127.0.0.1:{server.port}/99", "refuses: DB index is out of range"),
        (f"unix://:s3cr3t@{path}", "refuses the login"),
    ]:
        found = failure(address(text))
        assert why in str(found)
        assert not isinstance(found, StoreUnavailable)
        assert not [secret for secret in ("s3cr3t", "pw-of-ana", "pw-of-mute") if secret in str(found)]
    missing = failure(address(f"unix://{tmp_path}/none"))
    assert isinstance(missing, StoreUnavailable)
    assert "No such file" in str(missing)


def test_files_that_will_not_do(tmp_path: Path, pems: Certificates) -> None:
    missing, encrypted, certificate = tmp_path / "s3cr3t.pem", tmp_path / "encrypted.pem", pems.client.certificate
    run(["openssl", "pkcs8", "-topk8", "-in", pems.client.key, "-out", encrypted, "-passout", "pass:pw"])
    for files, why in (
        ({"ca": missing}, "ca= cannot be used: No such file"),
        ({"key": missing, "certificate": certificate}, "certificate= or key= cannot be used: No such file"),
        ({"key": encrypted, "certificate": certificate},
         "is encrypted. Next: decrypt it, or connect with redis.Redis(ssl_password=...)"),
    ):  # fmt: skip
        made = address("rediss+sentinel://ana:pw@h1/main", **files)  # nothing is read yet
        for connect in (made.connection, made.sentinel_connection):
            with pytest.raises(StoreError) as caught:
                connect(("h1", 6379), PATIENCE)
            assert str(caught.value).startswith("rediss+sentinel://h1/main: ")
            assert why in str(caught.value)
            assert "s3cr3t" not in str(caught.value)
