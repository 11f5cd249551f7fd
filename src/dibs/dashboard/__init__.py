"""The dashboard: the locks of one or more stores in a browser. `dibs dashboard` runs it; `app` is for your own server.

| File | Does |
|---|---|
| `asgi.py` | the ASGI app: routes, parameters, lifespan |
| `guard.py` | hosts, the token, headers, cross-site requests |
| `streams.py` | server-sent events |
| `threads.py` | its own threads |
| `views.py` | the JSON, from the samples of `dibs.monitor.sampler` |
| `breaking.py` | `POST api/break` |
| `static/` | the page |
"""

from __future__ import annotations

from dibs.dashboard.asgi import Dashboard, app

__all__ = ["Dashboard", "app"]
