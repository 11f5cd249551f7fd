"""The snippets of docs/production/dashboard.md that mount the dashboard let in whom they say, and nobody else."""

from __future__ import annotations

import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from observability.dashboards import Site, served

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "production" / "dashboard.md"
FASTAPI, DJANGO = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
PROJECT = """
import asyncio, sys
from django.conf import settings
settings.configure(
    SECRET_KEY="x", ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"],
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}},
)
urlpatterns = []
exec(compile(sys.stdin.read(), "asgi.py", "exec"))

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.core.management import call_command

call_command("migrate", verbosity=0)


def session(user):
    made = sessions.SessionStore()
    made[SESSION_KEY], made[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    made[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    made.save()
    return made.session_key


def ask(path, key=None):
    async def receive():
        if not bodies:
            await asyncio.Event().wait()  # the browser stays
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message):
        told.append(message)

    told, bodies = [], [b""]
    headers = [(b"host", b"localhost")] + ([(b"cookie", b"sessionid=" + key.encode())] if key else [])
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": headers, "root_path": "", "scheme": "http", "server": ("localhost", 80), "http_version": "1.1",
    }
    asyncio.run(application(scope, receive, send))
    return told[0]["status"]


staff = User.objects.create_user("ana", password="one", is_staff=True)
other = User.objects.create_user("bo", password="two")
key = session(staff)
print("anonymous", ask("/locks/api/view"), ask("/locks/"), ask("/locks/api/view", "forged"))
print("no staff", ask("/locks/api/view", session(other)))
print("staff", ask("/locks/api/view", key), ask("/locks", key), ask("/locks/nothing", key), ask("/elsewhere", key))
staff.set_password("three")
staff.save()
print("old session", ask("/locks/api/view", key))
staff.is_active = False
staff.save()
print("not active", ask("/locks/api/view", session(staff)))
dashboard.close()
"""


def test_the_fastapi_snippet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(compile(FASTAPI, "app.py", "exec"), made)
    with served(made["app"], "/locks") as site:
        assert [site.ask(path).status for path in ("", "api/view", "api/stream", "static/app.js")] == [401] * 4
        assert site.ask("").headers["www-authenticate"] == 'Basic realm="locks"'  # the browser asks for it
        assert site.ask("api/view", Authorization="Basic x").status == 401
        key = "Basic " + b64encode(f"ops:{made['PASSWORD']}".encode()).decode()
        assert [site.ask(path, Authorization=key).status for path in ("", "api/view")] == [200] * 2
        assert Site(site.port).ask("locks", Authorization=key).headers["location"].endswith("/locks/")
    made["dashboard"].close()
    made["client"].close()


def test_the_django_snippet(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROJECT], input=DJANGO, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.splitlines() == [
        "anonymous 401 401 401",
        "no staff 401",
        "staff 200 307 404 404",
        "old session 401",
        "not active 401",
    ], done.stderr
