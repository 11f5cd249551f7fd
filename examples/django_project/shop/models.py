"""The data that the lock protects."""

from __future__ import annotations

from django.db import models


class Invoice(models.Model):
    settled = models.BooleanField(default=False)
    fence = models.BigIntegerField(default=0)
    """The highest token that has written this row."""
