"""The URL and options of the store: read without I/O. Errors name the option and show no secret."""

from __future__ import annotations

import ssl
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from dibs.backends.zookeeper.address import Address
from dibs.errors import StoreError
from dibs.url import parse
from lab.servers.certificates import Certificates
from lab.servers.programs import ask


def address(text: str, **options: Any) -> Address:
    return Address(parse(text), **options)


def refusal(text: str, **options: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        address(text, **options)
    assert caught.value.__context__ is None
    return "".join(traceback.format_exception_only(caught.value))


def test_servers_and_chroot() -> None:
    for text, servers, chroot in (
        ("zookeeper://h1", (("h1", 2181),), ""),
        ("zookeeper://h1/", (("h1", 2181),), ""),
        ("zookeeper://h1,h2:2182,[::1]:2183/a/b", (("h1", 2181), ("h2", 2182), ("::1", 2183)), "/a/b"),
        ("zookeeper://zk-1.example.,10.0.0.1/app", (("zk-1.example.", 2181), ("10.0.0.1", 2181)), "/app"),
        ("zookeeper://my_host/app", (("my_host", 2181),), "/app"),
        ("zookeeper://[fe80::1%25eth0]/%C3%A9%20%25/...", (("fe80::1%eth0", 2181),), "/é %/..."),
    ):  # fmt: skip
        found = address(text)
        assert (found.servers, found.chroot, found.shown) == (servers, chroot, parse(text).shown)
        assert (found.login, found.acl, found.layout, found.tls) == (None, "open", None, None)


def test_the_login() -> None:
    found = address("zookeeper://ana:s3%3Acr%40et@h1,h2/app")
    assert found.login == ("ana", "s3:cr@et")
    assert (found.auth, found.acl) == ("digest", "creator")
    assert f"{found!r} {found} {found.shown}".count("zookeeper://h1,h2/app") == 3
    assert "cr" not in f"{found!r} {found} {found.shown}"


def test_an_option_is_a_keyword_or_stands_in_the_query() -> None:
    for option, value, text in (
        ("auth", "digest", "zookeeper://ana:pw@h1"),
        ("auth", "sasl", "zookeeper://ana:pw@h1"),
        ("acl", "open", "zookeeper://ana:pw@h1"),
        ("acl", "open", "zookeeper://h1"),
        ("acl", "creator", "zookeeper://ana:pw@h1"),
        ("acl", "creator-read", "zookeeper://ana:pw@h1/app"),
        ("layout", "semaphore-mutex", "zookeeper://h1"),
    ):
        assert getattr(address(text, **{option: value}), option) == value
        assert getattr(address(f"{text}?{option}={value}"), option) == value
        assert address(f"{text}?{option}={value}").shown == parse(text).shown
        assert getattr(address(f"{text}?{option}={value}", **{option: None}), option) == value
        assert f"{option}= is given twice" in refusal(f"{text}?{option}={value}&{option}={value}")
        assert f"{option}= is given twice" in refusal(f"{text}?{option}={value}", **{option: value})


WRONG: list[tuple[str, dict[str, Any], str]] = [
    *((text, {}, "names no server") for text in ("zookeeper://", "zookeeper:///app", "zookeeper://ana:s3cr3t@/app")),
    *(
        (f"zookeeper://ana:s3cr3t@{host}/app", {}, "is not a host name")
        for host in ("h 1", "h1,h 2", "h1, h2", "a..b", ".a", "a" * 64, "b\u00fccher", "a!", "%61")
    ),
    *(
        (f"zookeeper://h1{path}", {}, "chroot")
        for path in ("/a/", "//", "//a", "/a//b", "/.", "/..", "/a/../b", "/a/./b", "#a", "/\u0080", "/%C2%9F",
                     "/\ue000", "/\uffff", "/\U0001f512")
    ),
    *((f"zookeeper://{login}@h1", {}, "a user and a password") for login in ("ana", "ana:", ":s3cr3t", "")),
    *(
        (f"zookeeper://{login}@h1", {}, "control")
        for login in ("ana:s3cr3t%0A", "ana%00:s3cr3t", "ana:s3cr3t%C2%85", "ana:s3cr3t\udc80")
    ),
    ("zookeeper://a%3Ana:s3cr3t@h1", {}, "colon"),
    ("zookeeper://h1?auth=digest", {}, "auth= needs a login"),
    ("zookeeper://h1", {"auth": "sasl"}, "auth= needs a login"),
    ("zookeeper://ana:s3cr3t@h1?auth=s3cr3t", {}, 'auth= must be "digest" or "sasl"'),
    ("zookeeper://h1?acl=s3cr3t", {}, "acl= must be"),
    ("zookeeper://h1?acl=", {}, "acl= must be"),
    ("zookeeper://h1", {"acl": 5}, "acl= must be"),
    ("zookeeper://h1", {"acl": ["open"]}, "acl= must be"),
    ("zookeeper://h1?acl=creator", {}, "put a login into the URL"),
    ("zookeepers://h1?acl=creator-read", {}, "put a login into the URL"),
    ("zookeeper://h1?layout=s3cr3t", {}, 'layout= must be "semaphore-mutex"'),
    ("zookeeper://h1?ca=/s3cr3t.pem", {}, "ca= has no effect without TLS: write zookeepers://"),
    ("zookeeper://h1", {"certificate": "/s3cr3t.pem"}, "certificate= has no effect without TLS"),
    ("zookeeper://h1", {"ssl_context": ssl.create_default_context()}, "ssl_context= has no effect without TLS"),
    ("zookeepers://h1?key=s3cr3t", {}, "give certificate= too"),
    ("zookeepers://h1?ca=", {}, "ca= must be the path of a file"),
    ("zookeepers://h1?ca=s3cr3t%00", {}, "ca= must be the path of a file"),
    ("zookeepers://h1", {"ca": b"s3cr3t"}, "ca= must be the path of a file, not bytes"),
    ("zookeepers://h1", {"key": 5, "certificate": "x"}, "key= must be the path of a file, not int"),
    ("zookeepers://h1?ca=s3cr3t", {"ssl_context": ssl.create_default_context()}, "give one of them"),
    ("zookeepers://h1?ssl_context=s3cr3t", {}, "as a keyword"),
    ("zookeepers://h1", {"ssl_context": "s3cr3t"}, "must be an ssl.SSLContext, not str"),
    ("zookeepers://h1", {"ssl_context": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}, "is for servers"),
    ("zookeeper://h1?namespace=", {}, "namespace= does not go into the URL: pass it to connect() as a keyword"),
    ("zookeeper://h1?alc=open", {}, "no option alc= goes into the URL; there are auth=, acl=, layout="),
    ("zookeeper://h1?ACL=open", {}, "no option ACL="),
    ("zookeeper://h1?password=s3cr3t", {}, "no option password="),
    ("zookeeper://h1?password=&s3cr3t", {}, "the URL has an unknown option; there are auth="),
    ("zookeeper://h1?s3cr3t", {}, "the URL has an unknown option; there are auth="),
    ("zookeeper://h1?s3cr3t=x", {}, "the URL has an unknown option; there are auth="),
    ("zookeeper://h1?=s3cr3t", {}, "the URL has an unknown option; there are auth="),
    ("zookeeper://h1", {"alc": "open"}, "no store option 'alc'; there are auth=, acl=, layout="),
    ("zookeeper://h1", {"password": "s3cr3t"}, "no store option 'password'"),
    ("zookeeper://h1", {"tiemout": None}, "no store option 'tiemout'"),
]  # fmt: skip


def test_wrong_urls_and_options_are_refused_without_the_secret() -> None:
    for text, options, why in WRONG:
        error = refusal(text, **options)
        assert why in error, text
        assert "s3cr3t" not in error


def test_a_certificate_makes_a_creator_too() -> None:
    for options in ({"certificate": "ours.pem"}, {"ssl_context": ssl.create_default_context()}):
        assert address("zookeepers://h1", acl="creator", **options).acl == "creator"
        assert address("zookeepers://h1", **options).acl == "open"


def test_the_context_is_made_once_and_verifies_or_is_given(pems: Certificates) -> None:
    ca = pems.authority.certificate
    for context in (address("zookeepers://h1").tls, address(f"zookeepers://h1?ca={ca}").tls):
        assert context is not None
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    subjects = [found["subject"] for found in context.get_ca_certs()]
    assert subjects == [((("commonName", "authority"),),)], "with ca= no other authority is trusted"
    ours = address("zookeepers://h1", certificate=pems.client.certificate, key=str(pems.client.key))
    assert ours.tls is ours.tls
    given = ssl.create_default_context()
    assert address("zookeepers://h1", ssl_context=given).tls is given
    assert address("zookeepers://h1", certificate=pems.client.together).tls is not None


def test_files_that_cannot_be_used(tmp_path: Path, pems: Certificates) -> None:
    garbage, encrypted, missing = tmp_path / "garbage.pem", tmp_path / "encrypted.pem", tmp_path / "s3cr3t.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    ask(["openssl", "pkcs8", "-topk8", "-in", pems.client.key, "-out", encrypted, "-passout", "pass:pw"])
    certificate = pems.client.certificate
    for files, why in (
        ({"ca": missing}, "ca= cannot be used: No such file"),
        ({"ca": tmp_path}, "ca= cannot be used"),
        ({"ca": garbage}, "ca= cannot be used"),
        ({"certificate": garbage}, "certificate= cannot be used"),
        ({"certificate": certificate}, "certificate= cannot be used"),
        ({"key": missing, "certificate": certificate}, "certificate= or key= cannot be used: No such file"),
        ({"key": pems.server.key, "certificate": certificate}, "certificate= or key= cannot be used: key values mism"),
        (
            {"key": encrypted, "certificate": certificate},
            "is encrypted. Next: decrypt it, or load it into ssl_con",
        ),
    ):
        ours = address("zookeepers://ana:pw@h1/app", **files)  # nothing is read yet
        for _ in range(2):
            with pytest.raises(StoreError) as caught:
                _ = ours.tls
            error = str(caught.value)
            assert error.startswith("zookeepers://h1/app: ")
            assert why in error
            assert "s3cr3t" not in error
            assert "(_ssl.c" not in error


def test_without_tls_ssl_is_not_imported() -> None:
    code = (
        "import sys\n"
        "from dibs.backends.zookeeper.address import Address\n"
        "from dibs.backends.zookeeper.wire.transport import Transport\n"
        "from dibs.url import parse\n"
        "Address(parse('zookeeper://ana:pw@h1/app')).tls\n"
        "Address(parse('zookeepers://ana:pw@h1/app?ca=/x'))\n"
        "Transport\n"
        "print('ssl' in sys.modules)\n"
        "Address(parse('zookeepers://h1')).tls\n"
        "print('ssl' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True"]
