"""See shared.py."""

from lab.servers.shared import fresh_redis as fresh
from lab.servers.shared import redis

__all__ = ["fresh", "redis"]
