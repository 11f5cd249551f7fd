"""See shared.py."""

from lab.servers.shared import fresh_postgresql as fresh
from lab.servers.shared import postgresql

__all__ = ["fresh", "postgresql"]
