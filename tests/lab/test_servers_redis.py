"""One Redis: what it keeps, whom it lets in."""

from __future__ import annotations

import pytest

from lab.servers import certificates, programs
from lab.servers.certificates import Certificates
from lab.servers.programs import Refused, Silent, require
from lab.servers.redis import Redis, shown
from lab.servers.supervisor import Server


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("redis", "openssl")
    return certificates.make(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(("persist", "kept"), [("no", ""), ("everysec", "1"), ("always", "1")])
def test_life(persist: str, kept: str) -> None:
    require("redis")
    with Server(Redis(persist=persist)) as server:
        first, port = server.pid, server.port
        assert server.ask("SET", "a", "1") == "OK"
        assert server.ask("GET", "a") == "1"
        server.stop()
        with pytest.raises(Silent):
            server.ask("GET", "a", within=0.3)
        server.resume()
        assert server.ask("GET", "a") == "1"
        server.kill()
        with pytest.raises(Refused, match="refused"):
            server.ask("PING")
        assert server.restart().ask("GET", "a") == kept
        assert (server.port, server.url()) == (port, f"redis://127.0.0.1:{port}/0")
        assert server.pid != first
        server.ask("SET", "a", "2")
        assert server.restart(wipe=True).ask("GET", "a") == ""


def test_lines_of_its_configuration() -> None:
    require("redis")
    with Server(Redis("maxmemory 50mb", "maxmemory-policy noeviction", persist="always")) as server:
        assert server.ask("CONFIG", "GET", "maxmemory-policy").split() == ["maxmemory-policy", "noeviction"]
        assert server.ask("CONFIG", "GET", "appendfsync").split() == ["appendfsync", "always"]


def test_password() -> None:
    require("redis")
    kind = Redis(password="open-sesame")
    with Server(kind) as server:
        assert server.ask("SET", "a", "1") == "OK"
        assert server.url() == f"redis://:open-sesame@127.0.0.1:{server.port}/0"
        with pytest.raises(Refused, match="NOAUTH"):
            kind.cli("-e", "GET", "a")


def test_a_user_may_what_the_rules_say() -> None:
    require("redis")
    kind = Redis(users={"ana": ">secret ~dibs:* +@read +@write", "default": "nopass ~* &* +@all"})
    with Server(kind) as server:

        def as_ana(*words: str) -> str:
            return kind.cli("--user", "ana", "--pass", "secret", "--no-auth-warning", "-e", *words)

        assert as_ana("SET", "dibs:a", "1") == "OK"
        with pytest.raises(Refused, match=r"NOPERM.*key"):
            as_ana("SET", "other", "1")
        with pytest.raises(Refused, match=r"NOPERM.*command"):
            as_ana("CONFIG", "GET", "port")
        with pytest.raises(Refused, match="WRONGPASS"):
            kind.cli("-e", "AUTH", "ana", "wrong")
        assert server.ask("GET", "dibs:a") == "1"
        assert server.url(user="ana", password="secret").startswith("redis://ana:secret@")


def test_tls(tls: Certificates) -> None:
    kind = Redis(tls=tls)
    with Server(kind) as server:
        assert server.url().startswith("rediss://")
        assert server.ask("SET", "a", "1") == "OK"
        trusts = ("--tls", "--cacert", str(tls.authority.certificate))
        assert kind.cli(*trusts, "-e", "GET", "a") == "1"
        with pytest.raises((Refused, Silent)):
            kind.cli("-e", "GET", "a", within=2)
        with pytest.raises(Refused, match="certificate verify failed"):
            kind.cli("--tls", "--cacert", str(tls.self_signed.certificate), "-e", "GET", "a")


def test_tls_with_client_certificates(tls: Certificates) -> None:
    kind = Redis(tls=tls, client_certificates=True)
    with Server(kind) as server:
        assert server.ask("SET", "a", "1") == "OK"
        assert kind.cli(*shown(tls), "-e", "GET", "a") == "1"
        with pytest.raises(Refused, match=r"certificate required|closed the connection|reset"):
            kind.cli("--tls", "--cacert", str(tls.authority.certificate), "-e", "GET", "a")


def test_certificates_say_for_whom_they_are(tls: Certificates) -> None:
    def holds(pair: certificates.Pair, *options: str) -> bool:
        trust = ["-CAfile", tls.authority.certificate, *options, pair.certificate]
        try:
            programs.ask(["openssl", "verify", *trust])
        except Refused:
            return False
        return True

    here = ("-verify_ip", "127.0.0.1")
    assert holds(tls.server, *here)
    assert holds(tls.server, "-verify_hostname", "localhost")
    assert holds(tls.wrong_host)
    assert not holds(tls.wrong_host, *here)
    assert not holds(tls.self_signed, *here)
    assert holds(tls.client)
