"""The stores that are attacked: one of each kind, whatever `--dibs-store` asks of the contract suite."""

from __future__ import annotations

from dibs.testing.contract.stores import SERVERLESS, Subject
from lab.servers import shared

ATTACKED: dict[str, Subject] = {
    name: Subject(name, fresh)
    for name, fresh in {
        **SERVERLESS,
        "zookeeper": shared.fresh,
        "redis": shared.fresh_redis,
        "postgresql": shared.fresh_postgresql,
        "mysql": shared.fresh_mariadb,
    }.items()
}
