"""Engines of SQLAlchemy's whose way to connect cannot be honoured are refused, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

import dibs

URL = "postgresql+psycopg://ana:secret@localhost/app"


def give_token(dialect: object, record: object, arguments: object, parameters: dict[str, Any]) -> None:
    parameters["password"] = "a token of this minute"


@pytest.mark.parametrize("make", [create_engine, create_async_engine])
def test_an_engine_that_is_asked_at_each_connect_is_refused(make: Any) -> None:
    """Tokens in place of passwords are given so."""
    engine = make(URL)
    dibs.connect(engine).close()
    event.listen(getattr(engine, "sync_engine", engine), "do_connect", give_token)
    with pytest.raises(TypeError, match="do_connect") as caught:
        dibs.connect(engine)
    assert "secret" not in str(caught.value)
