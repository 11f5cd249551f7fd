"""docs/recipes/deploy.md: one deployment at a time, stopped when its lock is gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cli.wrapped import gone
from process.children import until
from recipes.programs import Program, Stage

LOCK = "deploy"
COMMAND = """
trap 'echo ended by TERM; exit 3' TERM
echo command $$ token $DEPLOY_TOKEN
while true; do read line < gate && exit $line; done
"""
"""Deploys until somebody writes a status to the pipe `gate`."""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


def deploying(stage: Stage, version: str, *options: object) -> Program:
    return stage.start("deploy.py", *options, version, "sh", "-c", COMMAND)


@pytest.mark.gate
def test_deployments_take_turns_and_end_with_their_own_status(stage: Stage, gate: Path) -> None:
    first = deploying(stage, "v7")
    token = first.hear(r"deploying v7, token (\d+)")[1]
    assert first.hear(r"command \d+ token (\d+)")[1] == token
    hasty = deploying(stage, "v8", "--wait", 0.2)
    assert hasty.end() == 75
    assert "not now, version v7 is under way" in hasty.text
    assert f"pid {first.pid}" in hasty.text
    assert "command" not in hasty.text
    second = deploying(stage, "v9")
    stage.waiting(LOCK, 1)
    gate.write_text("4\n")
    second.hear("command")
    assert first.end() == 4, "the first had ended when the second began"
    gate.write_text("0\n")
    assert second.end() == 0
    assert not stage.holders(LOCK)


@pytest.mark.alone
def test_a_lost_lock_stops_the_command(stage: Stage, gate: Path) -> None:
    first = deploying(stage, "v7", "--max-hold", 0.5)
    first.hear("ended by TERM")
    assert first.end() == 76
    assert "stopped half-way" in first.text
    assert not stage.holders(LOCK)


@pytest.mark.gate
def test_a_deployment_that_is_called_off_stops_its_command_first(stage: Stage, gate: Path) -> None:
    first = deploying(stage, "v7")
    first.hear("command")
    first.signal(signal.SIGINT)
    first.hear("ended by TERM")
    assert first.end() == 128 + signal.SIGINT
    assert not stage.holders(LOCK)


def test_a_killed_deployment_frees_the_lock_and_leaves_its_command_running(stage: Stage, gate: Path) -> None:
    """The page says both."""
    first = deploying(stage, "v7")
    old = int(first.hear(r"token (\d+)")[1])
    orphan = int(first.hear(r"command (\d+)")[1])
    first.kill()
    second = deploying(stage, "v8")
    assert int(second.hear(r"deploying v8, token (\d+)")[1]) > old
    assert not gone(orphan)
    second.hear("command")
    second.signal(signal.SIGTERM)
    second.end()
    os.kill(orphan, signal.SIGKILL)
    until(lambda: gone(orphan), what="the end of the orphan")
