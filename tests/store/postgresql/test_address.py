"""What URLs and options say, without a server: what is libpq's goes to libpq, and no secret is shown."""

from __future__ import annotations

import pytest

import dibs
from dibs.backends.postgresql.address import Address
from dibs.url import parse

SECRET = "s3cret-word"


def conninfos(url: str, **options: object) -> list[str]:
    return [attempt.conninfo.decode() for attempt in Address.of(parse(url), **options).attempts()]


def test_the_parts_of_a_url() -> None:
    (one,) = conninfos(f"postgresql://ana:{SECRET}@h:5433/app?sslmode=verify-full&application_name=my%20app")
    for part in ("user=ana", f"password={SECRET}", "host=h", "port=5433", "dbname=app", "sslmode=verify-full"):
        assert part in one
    assert "application_name='my app'" in one


def test_several_hosts_are_tried_for_one_that_can_be_written_to() -> None:
    one, two = conninfos("postgres://h1,h2:5433/app")
    assert "host=h1" in one
    assert "host=h2 port=5433" in two
    assert "target_session_attrs=read-write" in one
    assert "target_session_attrs=any" in conninfos("postgres://h1,h2/app?target_session_attrs=any")[0]


def test_a_unix_socket_and_nothing_at_all() -> None:
    assert "host=/run/postgresql" in conninfos("postgresql:///app?host=/run/postgresql")[0]
    assert "host=" not in conninfos("postgresql://")[0]


def test_passwords_are_quoted() -> None:
    (one,) = conninfos("postgresql://ana:a%20b%27c%5C%20host=evil@h/app")
    assert r"password='a b\'c\\ host=evil'" in one


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://h/a/b", "one database"),
        ("postgresql://h/app?nonsense=1", "no option nonsense="),
        ("postgresql://h/app?host=other", "host= is given twice"),
        ("postgresql://ana@h/app?user=bob", "user= is given twice"),
        ('postgresql://h/app?schema=a"b', "schema= must be"),
        ("postgresql://h/app?schema=1a", "schema= must be"),
        ("postgresql://h/app?wake=never", "wake= must be"),
        ("postgresql://h/app?connections=0", "at least 1"),
        ("postgresql://h/app?client_encoding=latin1", "no option client_encoding="),
    ],
)
def test_what_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        dibs.connect(url)


def test_an_option_that_nobody_has() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        dibs.connect("postgresql://h/app", nonsense=1)


def test_a_secret_in_the_wrong_place_is_not_repeated() -> None:
    """libpq repeats what it does not understand."""
    with dibs.connect(f"postgresql://127.0.0.1:1/app?sslmode={SECRET}") as client:
        with pytest.raises(dibs.StoreError) as caught:
            client.lock("a").acquire(timeout=0.5)
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(caught.value.__dict__)
