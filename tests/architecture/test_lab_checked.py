"""The lab is as its own tests last saw it."""

from __future__ import annotations

from lab.checked import CHECKED, digest


def test_the_lab_was_checked_since_it_changed() -> None:
    checked = CHECKED.read_text().strip() if CHECKED.exists() else ""
    assert checked == digest(), "tests/lab changed since its own tests last ran: run scripts/soak lab"
