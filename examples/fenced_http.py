"""An HTTP service that stores documents and refuses writes with a stale token.

fenced_http.py DATABASE [PORT]

    PUT /settings   Fencing-Token: 1794713609678299   -> 204
    PUT /settings   Fencing-Token: 1794713609678298   -> 409, a later holder has written
    PUT /settings                                     -> 428, a token is needed
    GET /settings                                     -> 200 with the document, or 404
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGEST = 1_000_000
SCHEMA = "CREATE TABLE IF NOT EXISTS documents (path TEXT PRIMARY KEY, body BLOB NOT NULL, fence INTEGER NOT NULL)"
PUT = """
INSERT INTO documents (path, body, fence) VALUES (:path, :body, :token)
ON CONFLICT (path) DO UPDATE SET body = excluded.body, fence = excluded.fence WHERE fence <= excluded.fence
"""
"""One statement compares and changes. The highest token is stored on disk, so it survives a restart."""


class Documents(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def __init__(self, database: str, *rest: object) -> None:
        self.database = database
        super().__init__(*rest)  # type: ignore[arg-type]  # the arguments that the server passes to every handler

    def do_GET(self) -> None:
        with closing(sqlite3.connect(self.database, timeout=30)) as db:
            row = db.execute("SELECT body FROM documents WHERE path = ?", (self.path,)).fetchone()
        if row is None:
            self.answer(HTTPStatus.NOT_FOUND, "no such document")
        else:
            self.answer(HTTPStatus.OK, row[0])

    def do_PUT(self) -> None:
        token, size = number(self.headers["Fencing-Token"]), number(self.headers["Content-Length"])
        if size is None or size > LARGEST:
            self.close_connection = True  # the unread body must not be parsed as the next request
            self.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"Content-Length must be at most {LARGEST}")
            return
        body = self.rfile.read(size)
        if token is None:
            self.answer(HTTPStatus.PRECONDITION_REQUIRED, "take the lock and send its token as Fencing-Token")
            return
        with closing(sqlite3.connect(self.database, timeout=30)) as db, db:
            admitted = db.execute(PUT, {"path": self.path, "body": body, "token": token}).rowcount == 1
        if admitted:
            self.answer(HTTPStatus.NO_CONTENT)
        else:
            self.answer(HTTPStatus.CONFLICT, "a holder with a later token has written; start over from the lock")

    def answer(self, status: HTTPStatus, body: bytes | str = b"") -> None:
        contents = body if isinstance(body, bytes) else json.dumps({"error": body}).encode()
        self.send_response(status)
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(contents)))
        self.end_headers()
        self.wfile.write(contents)


def number(text: str | None) -> int | None:
    """Parse a header; None if it is missing or not a valid token or length."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def main() -> None:
    database, *rest = sys.argv[1:]
    with closing(sqlite3.connect(database)) as db:
        db.execute(SCHEMA)
    with ThreadingHTTPServer(("127.0.0.1", int(rest[0]) if rest else 0), partial(Documents, database)) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
