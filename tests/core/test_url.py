"""URLs: parsed once, shown without secrets, and never echoed when they are broken."""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

import traceback
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dibs.url import parse

SECRETS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).map(lambda text: f"s3cr3t{text}s3cr3t")
BRACKETS = st.text(st.sampled_from("abc123:/?#[]@%&=.+-_ é"), min_size=1, max_size=20).map(lambda t: f"9{t}s3cr3t9")


def shown(text: str) -> str:
    """All that anyone may get to see of a URL."""
    try:
        url = parse(text)
    except (ValueError, TypeError) as error:
        return "".join(traceback.format_exception(error))
    return f"{url!r} {url} {url.shown} {[url]}"


@given(SECRETS, st.sampled_from(["", "ana"]), st.sampled_from(["redis", "mysql", "memory", "x+y"]))
def test_a_password_is_never_shown(password: str, user: str, scheme: str) -> None:
    url = parse(f"{scheme}://{user}:{quote(password, safe='')}@host:6379/0?timeout=5")
    assert url.password == password
    assert url.shown == f"{scheme}://host:6379/0"
    assert password not in repr(url)
    assert quote(password, safe="") not in f"{url!r} {url} {url.shown}"


@given(SECRETS | BRACKETS)
@example("12345/s3cr3t")
@example("s3cr3t/12345")
@example("6379?s3cr3t")
@example("6379#s3cr3t")
@example("s3cr3t[")
@example("s3cr3t@s3cr3t")
def test_a_password_that_was_not_quoted_and_a_query_are_never_shown(password: str) -> None:
    text = shown(f"redis://ana:{password}@host:6379/0")
    assert password not in text
    assert "s3cr3t" not in text
    assert "s3cr3t" not in shown(f"redis://host/0?password={quote(password, safe='')}")


@given(st.text(min_size=12))
def test_what_is_no_url_is_not_echoed(text: str) -> None:
    if "://" not in text:
        with pytest.raises(ValueError, match="URL") as caught:
            parse(text)
        assert text not in str(caught.value)


def test_urls() -> None:
    for text, *parts in (
        ("memory://", "", None, ""),
        ("memory://name", "name", None, ""),
        ("sqlite:///relative.db", "", None, "/relative.db"),
        ("sqlite:////absolute%20dir/x.db", "", None, "//absolute dir/x.db"),
        ("redis://localhost:6379/0", "localhost", 6379, "/0"),
        ("redis://[::1]:6379", "[::1]", 6379, ""),
        ("zookeeper://h1,h2,h3/app", "h1,h2,h3", None, "/app"),
        ("unix:///run/redis.sock", "", None, "/run/redis.sock"),
    ):
        url = parse(text)
        assert [url.host, url.port, url.path] == parts, text


BROKEN: list[tuple[type[Exception], str, list[object]]] = [
    (ValueError, "URL", ["redis://h:0", "redis://h:65536", "redis://h:x", "redis://[h", "redis", "", "://h"]),
    (ValueError, "control", ["redis://h/\n", "redis://h\x00", "red\tis://h", "redis://h\x7f"]),
    (TypeError, "URL", [None, 5, b"redis://h", ["redis://h"]]),
    (ValueError, "one login goes before all hosts",
     [f"zookeeper://{login}/app" for login in
      ("ana:s3cr3t@h1,ana:s3cr3t@h2", "ana@h1,ana:s3cr3t@h2", "h1,ana:s3cr3t@h2")]),
]  # fmt: skip


def test_broken_urls() -> None:
    for error, said, texts in BROKEN:
        for text in texts:
            with pytest.raises(error, match=said) as caught:
                parse(text)
            assert "s3cr3t" not in str(caught.value)


HOSTS: list[tuple[str, tuple[tuple[str, int | None], ...]]] = [
    ("", ()),
    ("h1", (("h1", None),)),
    ("h1:2181", (("h1", 2181),)),
    ("[::1]:2181", (("::1", 2181),)),
    ("h1,h2,h3", (("h1", None), ("h2", None), ("h3", None))),
    ("h1:2181,h2,[::1]:2183", (("h1", 2181), ("h2", None), ("::1", 2183))),
    ("[::1],[2001:db8::2]:65535", (("::1", None), ("2001:db8::2", 65535))),
    ("[fe80::1%25eth0]", (("fe80::1%eth0", None),)),
    ("10.0.0.1:1,b\u00fccher.example", (("10.0.0.1", 1), ("b\u00fccher.example", None))),
]


def test_hosts() -> None:
    for written, hosts in HOSTS:
        url = parse(f"zookeeper://ana:s3cr3t@{written}/app?acl=open")
        assert url.hosts == hosts, written
        assert url.shown == f"zookeeper://{written}/app"
        assert (url.username, url.password, url.path, url.query) == ("ana", "s3cr3t", "/app", (("acl", "open"),))
        assert len(hosts) < 2 or (url.host, url.port) == (written, None), written
    assert parse("zookeeper://ana:a,b%40c@h1,h2").password == "a,b@c"


BROKEN_HOSTS = [
        ",", "h1,", ",h1", "h1,,h2", "h1,:2181", ":2181", "h1:,h2", "h1:0,h2", "h1,h2:65536", "h1,h2:-1", "h1,h2:+1",
        "h1,h2:2181:2182", "h1,::1", "[::1,h2", "h1,::1]", "[h1,h2]", "[h1]", "[10.0.0.1]", "[]", "[::1]x", "x[::1]",
        "[[::1]]", "[::1]:0", "h1:\u0661,h2", "h1\u2100,h2", "h1\uff0ch2", "h1\uff1a2181",
]  # fmt: skip


def test_broken_hosts() -> None:
    for written in BROKEN_HOSTS:
        with pytest.raises(ValueError, match="check its hosts, brackets and ports") as caught:
            parse(f"zookeeper://ana:s3cr3t@{written}/app")
        assert written == "," or written not in str(caught.value)
        assert caught.value.__context__ is None


@given(st.text(st.sampled_from("h1:,[]@9 .%é")))
def test_hosts_of_any_shape_are_read_or_refused(written: str) -> None:
    try:
        url = parse(f"zookeeper://{written}/app")
    except ValueError as error:
        assert "URL is broken" in str(error)
    else:
        assert all(host and port != 0 for host, port in url.hosts)
        assert len(url.hosts) == (url.host.count(",") + 1 if url.host else 0)
