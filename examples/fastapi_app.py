"""A lock as a FastAPI dependency, for plain functions and for coroutines.

uvicorn fastapi_app:app
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

import dibs
import dibs.aio

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")
WAIT = 2.0
"""For the lock of an invoice: a caller would rather come back than wait long."""
LEASE = 5.0
"""Requests are short, so nobody should have to wait half a minute for a server that stands still."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client of each face for the whole life of the process."""
    with dibs.connect(lease=LEASE) as client:
        async with dibs.aio.connect(lease=LEASE) as aio_client:
            app.state.client, app.state.aio_client = client, aio_client
            yield


app = FastAPI(lifespan=lifespan)


def locked(invoice: int, request: Request) -> Iterator[dibs.Hold]:
    """For `def` endpoints. FastAPI may enter and leave it on different threads of its pool: a lock object of its own,
    made here for this request, does not mind."""
    client: dibs.Client = request.app.state.client
    with client.lock(f"invoice:{invoice}", timeout=WAIT) as hold:
        yield hold


async def aio_locked(invoice: int, request: Request) -> AsyncIterator[dibs.aio.Hold]:
    """For `async def` endpoints. A lost lock cancels the request where it awaits, and becomes LockLost here."""
    client: dibs.aio.Client = request.app.state.aio_client
    async with client.lock(f"invoice:{invoice}", timeout=WAIT, cancel_on_lost=True) as hold:
        yield hold


# scope="function": the lock is given back before the answer is sent, so that a loss can still change the answer.
Locked = Annotated[dibs.Hold, Depends(locked, scope="function")]
AioLocked = Annotated[dibs.aio.Hold, Depends(aio_locked, scope="function")]


@app.exception_handler(dibs.Busy)
async def busy(request: Request, error: dibs.Busy) -> JSONResponse:
    return JSONResponse({"detail": "somebody else is at it"}, 423, {"Retry-After": "1"})


@app.exception_handler(dibs.LockLost)
@app.exception_handler(dibs.StaleToken)
async def lost(request: Request, error: dibs.DibsError) -> JSONResponse:
    return JSONResponse({"detail": "the lock was lost on the way: look, then try again"}, 409)


@app.exception_handler(dibs.StoreUnavailable)
async def silent(request: Request, error: dibs.StoreUnavailable) -> JSONResponse:
    return JSONResponse({"detail": "locks cannot be had now"}, 503, {"Retry-After": "5"})


def settle(invoice: int, token: int) -> str:
    """Only once, and not with a stale token."""
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
