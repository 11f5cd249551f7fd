"""Which of the two stores a URL or an engine means: the line in tables, with leases, or session mode."""

from __future__ import annotations

from typing import Any

from dibs.backends.mysql.address import Address
from dibs.backends.mysql.store import MysqlStore
from dibs.core.line import Store
from dibs.url import Url


def of_url(url: Url, **options: Any) -> Store:
    return _store(Address.of(url, **options))


def of_engine(engine: object, **options: Any) -> Store:
    """With the settings of an engine of SQLAlchemy's, of either face."""
    return _store(Address.of_engine(engine, **options))


def _store(address: Address) -> Store:
    if address.mode == "lease":
        return MysqlStore(address)
    from dibs.backends.mysql.session.store import SessionStore  # noqa: PLC0415  (few programs use it)

    return SessionStore(address)
