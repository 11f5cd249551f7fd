"""A lock as a FastAPI dependency, for `def` and `async def` endpoints.

uvicorn fastapi_app:app
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

import dibs
import dibs.aio

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")
WAIT = 2.0
"""How long a request waits for the lock of an invoice, in seconds. A caller should rather retry than wait long."""
LEASE = 5.0
"""Requests are short, so a dead server should not block others for half a minute."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    """One sync and one async client for the whole life of the process."""
    with dibs.connect(lease=LEASE) as client:
        async with dibs.aio.connect(lease=LEASE) as aio_client:
            app.state.client, app.state.aio_client = client, aio_client
            yield


app = FastAPI(lifespan=lifespan)


def locked(invoice: int, request: Request) -> Iterator[dibs.Hold]:
    """For `def` endpoints. FastAPI may enter and leave it on different threads of its pool. That is fine for a lock
    object that only this request uses."""
    client: dibs.Client = request.app.state.client
    with client.lock(f"invoice:{invoice}", timeout=WAIT) as hold:
        yield hold


async def aio_locked(invoice: int, request: Request) -> AsyncIterator[dibs.aio.Hold]:
    """For `async def` endpoints. A lost lock cancels the request at its next await, and LockLost is raised here."""
    client: dibs.aio.Client = request.app.state.aio_client
    async with client.lock(f"invoice:{invoice}", timeout=WAIT, cancel_on_lost=True) as hold:
        yield hold


# scope="function": the lock is released before the response is sent, so a loss can still change the response.
Locked = Annotated[dibs.Hold, Depends(locked, scope="function")]
AioLocked = Annotated[dibs.aio.Hold, Depends(aio_locked, scope="function")]


@app.exception_handler(dibs.Busy)
async def busy(request: Request, error: dibs.Busy) -> JSONResponse:
    return JSONResponse({"detail": "another request holds this invoice"}, 423, {"Retry-After": "1"})


@app.exception_handler(dibs.LockLost)
@app.exception_handler(dibs.StaleToken)
async def lost(request: Request, error: dibs.DibsError) -> JSONResponse:
    return JSONResponse({"detail": "the lock was lost: check the invoice, then try again"}, 409)


@app.exception_handler(dibs.StoreUnavailable)
async def unavailable(request: Request, error: dibs.StoreUnavailable) -> JSONResponse:
    return JSONResponse({"detail": "the lock store does not answer"}, 503, {"Retry-After": "5"})


def settle(invoice: int, token: int) -> str:
    """Settle once, and never with a stale token."""
    with closing(sqlite3.connect(DATABASE, timeout=30)) as db, db:
        change = "UPDATE invoices SET settled = 1, fence = :token WHERE id = :id AND NOT settled AND fence <= :token"
        if db.execute(change, {"id": invoice, "token": token}).rowcount == 1:
            return "settled"
        row = db.execute("SELECT settled FROM invoices WHERE id = ?", (invoice,)).fetchone()
        if row is None:
            return "no such invoice"
        if not row[0]:
            raise dibs.StaleToken(f"token {token} is stale", name=f"invoice:{invoice}", step="take the lock again")
        return "settled before"


@app.post("/invoices/{invoice}/settle")
def settle_invoice(invoice: int, hold: Locked) -> dict[str, str]:
    return {"outcome": settle(invoice, hold.token)}


@app.post("/aio/invoices/{invoice}/settle")
async def settle_invoice_aio(invoice: int, hold: AioLocked) -> dict[str, str]:
    return {"outcome": await run_in_threadpool(settle, invoice, hold.token)}
