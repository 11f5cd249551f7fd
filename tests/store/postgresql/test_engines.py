"""Engines of SQLAlchemy's whose way to connect cannot be honoured are refused, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

import dibs


def test_an_engine_that_is_asked_at_each_connect_is_refused() -> None:
    """Tokens in place of passwords are given so."""
    for make in (create_engine, create_async_engine):
        engine: Any = make("postgresql+psycopg://ana:secret@localhost/app")
        dibs.connect(engine).close()
        event.listen(getattr(engine, "sync_engine", engine), "do_connect", lambda *_: None)
        with pytest.raises(TypeError, match="do_connect") as caught:
            dibs.connect(engine)
        assert "secret" not in str(caught.value)
