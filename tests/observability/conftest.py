"""Fixtures that several modules of this directory use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dibs
import dibs.dashboard
from cli.commands import cli
from observability.dashboards import Site, Watch, served
from observability.telemetry import Otel

__all__ = ["cli"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[dibs.Client]:
    with dibs.connect(f"sqlite:///{tmp_path}/locks.db", owner="ana") as made:
        yield made


@pytest.fixture
def site(client: dibs.Client) -> Iterator[Site]:
    """A dashboard of the client, without a token; breaking is allowed."""
    with served(dibs.dashboard.app(client, allow_break=True, hosts=["localhost", "127.0.0.1", "::1"])) as made:
        yield made


@pytest.fixture
def watch() -> Iterator[Watch]:
    with dibs.connect("memory://sampler") as client:
        yield Watch(client)


@pytest.fixture
def otel() -> Iterator[Otel]:
    with Otel() as sdk:
        yield sdk
