"""manage.py settle_invoices: runs while no other copy of it runs.

Exit status: 0 when everything is settled, 75 if another copy is at work.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from shop.models import Invoice

import dibs


class Command(BaseCommand):
    help = "Settle every open invoice."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--wait", type=float, default=0.0, help="how long to wait for another copy, in seconds")

    def handle(self, *args: Any, **options: Any) -> None:
        with dibs.connect() as client:
            lock = client.lock("settle-invoices", timeout=options["wait"], max_hold=3600)
            try:
                with lock as hold:
                    self.settle_all(hold)
            except dibs.AcquireTimeout as busy:
                raise CommandError(f"another copy is at work: {busy}", returncode=75) from None
            except dibs.LockLost as lost:
                raise CommandError(f"stopped half-way, run it again: {lost}") from None

    def settle_all(self, hold: dibs.Hold) -> None:
        """Row by row, so that the next copy can continue where this one stopped."""
        opened = list(Invoice.objects.filter(settled=False).order_by("pk").values_list("pk", flat=True))
        for invoice in opened:
            hold.check()
            # The UPDATE itself compares the token, so it refuses a copy that has lost the lock.
            row = Invoice.objects.filter(pk=invoice, settled=False, fence__lte=hold.token)
            if row.update(settled=True, fence=hold.token) == 0:
                raise CommandError(f"invoice {invoice} was written by a later copy: stopping here")
        self.stdout.write(f"{len(opened)} settled")
