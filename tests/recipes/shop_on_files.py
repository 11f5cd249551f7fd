"""The app of examples/celery_task.py with a broker that needs no server: its messages are files, where it runs."""

from __future__ import annotations

from pathlib import Path

from celery_task import app, settle

for folder in ("queue", "control"):
    Path(folder).mkdir(exist_ok=True)
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"},
)
__all__ = ["app", "settle"]
