"""See shared.py."""

from lab.servers.shared import fresh_mariadb as fresh
from lab.servers.shared import mariadb

__all__ = ["fresh", "mariadb"]
