"""Certificates for tests, made by openssl and valid for a day: an authority, what it signed, and untrusted ones.

Keys are P-256, unencrypted, PKCS #8. `Pair.together` is one file with key and certificate, as ZooKeeper wants it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.servers import programs

LOOPBACK = "DNS:localhost,IP:127.0.0.1"
AUTHORITY = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign")


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path
    together: Path


@dataclass(frozen=True)
class Certificates:
    authority: Pair
    server: Pair
    client: Pair
    wrong_host: Pair
    """Signed by the authority, for a host that is not loopback."""
    self_signed: Pair
    """For loopback, signed by nobody else; as an authority: one that signed nothing here."""


def make(directory: Path) -> Certificates:
    (directory / "openssl.cnf").write_text("[req]\ndistinguished_name = name\n[name]\n")  # not the machine's defaults
    authority = _issue(directory, "authority", *AUTHORITY)
    signer = ("-CA", str(authority.certificate), "-CAkey", str(authority.key))

    def signed(name: str, hosts: str) -> Pair:
        return _issue(directory, name, "basicConstraints=critical,CA:FALSE", f"subjectAltName={hosts}", signer=signer)

    return Certificates(
        authority=authority,
        server=signed("server", LOOPBACK),
        client=signed("client", "DNS:client.invalid"),
        wrong_host=signed("wrong_host", "DNS:elsewhere.invalid"),
        self_signed=_issue(directory, "self_signed", *AUTHORITY, f"subjectAltName={LOOPBACK}"),
    )


def _issue(directory: Path, name: str, *extensions: str, signer: tuple[str, ...] = ()) -> Pair:
    pair = Pair(*(directory / f"{name}.{ending}" for ending in ("crt", "key", "pem")))
    request = ["openssl", "req", "-x509", "-config", directory / "openssl.cnf", "-subj", f"/CN={name}", "-days", "1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", pair.key]
    added = [part for extension in extensions for part in ("-addext", extension)]
    programs.ask([*request, *key, *added, *signer, "-out", pair.certificate])
    pair.together.write_text(pair.key.read_text() + pair.certificate.read_text())
    return pair
