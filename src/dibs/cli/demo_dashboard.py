"""`dibs demo --dashboard`: the dashboard on the demo's store, in a process that ends with the demo."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager

from dibs.cli import dashboard
from dibs.cli.demo_worker import NAMESPACE
from dibs.cli.options import UsageError
from dibs.cli.output import is_terminal, say
from dibs.cli.system import die_with


@contextmanager
def dashboard_beside(environment: dict[str, str]) -> Iterator[None]:
    """Print the dashboard's URL, and open it where there is somebody to see it."""
    dashboard.need_uvicorn()
    command = [sys.executable, "-P", "-m", "dibs.cli.demo_dashboard", str(os.getpid())]
    with subprocess.Popen(  # noqa: S603  # our own module
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as served:
        assert served.stdout is not None
        try:
            url = served.stdout.readline().strip()
            if not url:
                raise UsageError("the dashboard did not start")
            say(f"dashboard: {url}", command="demo")
            if is_terminal() and _has_display():
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
            yield
        finally:
            served.kill()


def _has_display() -> bool:
    """Without one, webbrowser would start a browser for terminals, over the demo."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def main() -> int:
    die_with(int(sys.argv[1]))
    return dashboard.main(["--port", "0", "--namespace", NAMESPACE])


if __name__ == "__main__":
    sys.exit(main())
