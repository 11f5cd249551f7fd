"""The stores that are attacked: those that `--dibs-store` names, or else all there are."""

from __future__ import annotations

import pytest

from dibs.testing.contract.stores import Subject, chosen
from lab.servers import shared, shared_mariadb, shared_postgresql, shared_redis

_SERVERS = {
    "zookeeper": Subject("zookeeper", shared.fresh),
    "redis": Subject("redis", shared_redis.fresh),
    "postgresql": Subject("postgresql", shared_postgresql.fresh),
    "mysql": Subject("mysql", shared_mariadb.fresh),
}


def attacked(config: pytest.Config) -> dict[str, Subject]:
    stores = chosen(config)
    return stores if config.getoption("dibs_store") else {**stores, **_SERVERS}
