"""TLS for the network stores: contexts from PEM files, and errors that name the next step.

`ssl` is imported inside functions, so that a client without TLS does not load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dibs.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from ssl import SSLCertVerificationError, SSLContext, SSLError

FILES = ("ca", "certificate", "key")
"""The options: trusted certificates, the client's certificate, and its key."""
_WRONG_HOST = frozenset({62, 63, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH, EMAIL_MISMATCH, IP_ADDRESS_MISMATCH."""
_WRONG_TIME = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID, CERT_HAS_EXPIRED."""


def files(shown: str, given: Mapping[str, Any], secure: bool, written: str) -> dict[str, str]:
    """The TLS files among the options, checked. `written`: the scheme with TLS, for the error text."""
    found = {option: given[option] for option in FILES if option in given}
    if found and not secure:
        raise ValueError(f"{shown}: {next(iter(found))}= has no effect without TLS: write {written}://")
    if "key" in found and "certificate" not in found:
        raise ValueError(f"{shown}: key= is the key of a certificate: give certificate= too")
    return found


def context(shown: str, named: Mapping[str, str], encrypted: str) -> SSLContext:
    """A context that verifies certificates and host names. It trusts only `ca` if given, else the system's authorities.

    `named`: the files by option. `encrypted`: the next step if a key is encrypted.
    """
    import ssl  # noqa: PLC0415  (see above)

    ca, certificate, key = (named.get(option) for option in FILES)
    option, content = "ca=", "certificates"
    try:
        made = ssl.create_default_context(cafile=ca)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        option, content = "certificate=", "a certificate and its key"
        if key is not None:
            option, content = "certificate= or key=", "the certificate, and the other one its key"
        if certificate is not None:
            made.load_cert_chain(certificate, key, _no_passphrase)
    except ssl.SSLError as error:
        why = error.reason.replace("_", " ").lower() if error.reason else "it contains no usable PEM"
        step = f"check that the file holds {content}"
        raise StoreError(f"{option} cannot be used: {why}", store=shown, step=step) from None
    except OSError as error:
        raise StoreError(f"{option} cannot be used: {error.strerror}", store=shown, step="check its path") from None
    except _Encrypted:
        raise StoreError(f"the key of {option} is encrypted", store=shown, step=encrypted) from None
    return made


def failure(host: str, error: SSLError) -> StoreError:
    """A rejected certificate, theirs or ours, is a StoreError, because a retry does not help. Any other TLS failure is
    StoreUnavailable."""
    import ssl  # noqa: PLC0415  (see above)

    return _distrusted(host, error) if isinstance(error, ssl.SSLCertVerificationError) else _failed(host, error)


def _distrusted(host: str, error: SSLCertVerificationError) -> StoreError:
    if error.verify_code in _WRONG_HOST:
        step = "connect with a host name that is in the certificate"
    elif error.verify_code in _WRONG_TIME:
        step = "renew the server's certificate, or set this machine's clock"
    else:
        step = "give the certificate of its authority: ca=/path/to/ca.pem"
    return StoreError(f"the certificate of {host} cannot be trusted: {error.verify_message}", step=step)


def _failed(host: str, error: SSLError) -> StoreError:
    reason = error.reason or "the connection broke"
    why = reason.replace("_", " ").lower()
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        step = "give a certificate that it accepts: certificate=/path/to/client.pem and key=/path/to/key.pem"
        return StoreError(f"{host} does not accept our certificate: {why}", step=step)
    step = "check that this is the server's TLS port, its TLS versions, and whether it requires certificate="
    return StoreUnavailable(f"TLS with {host} failed: {why}", step=step)


class _Encrypted(Exception):
    pass


def _no_passphrase() -> str:
    """Called for an encrypted key; without it OpenSSL would prompt on the terminal."""
    raise _Encrypted
