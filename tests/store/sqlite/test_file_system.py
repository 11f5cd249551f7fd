"""Which file systems are refused, by real-looking texts of /proc/self/mountinfo."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
from dibs.backends.sqlite.files import file_system

Connect = Callable[..., dibs.Client]

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
25 22 0:5 / /proc rw,nosuid shared:13 - proc proc rw
30 22 0:50 / /home rw,relatime shared:20 - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /home/local rw - xfs /dev/sda2 rw
32 22 0:61 / /mnt/with\\040space rw - cifs //server/share rw
33 22 0:62 /vol /mnt/sub rw shared:5 master:1 - btrfs /dev/sdb rw
34 22 0:70 / /mnt/m\u00fcll rw - nfs server:/x rw
35 22 0:71 / /mnt/over rw - ext4 /dev/sdc rw
36 22 0:72 / /mnt/over rw - fuse.sshfs host: rw
broken line
"""


@pytest.mark.parametrize(
    ("device", "path", "kind"),
    [
        ((8, 1), "/var/lib", "ext4"),
        ((0, 50), "/home/ana", "nfs4"),
        ((8, 2), "/home/local/x", "xfs"),
        ((0, 61), "/mnt/with space/x", "cifs"),
        ((0, 99), "/home/ana", "nfs4"),
        ((0, 99), "/homely", "ext4"),
        ((0, 99), "/mnt/with space", "cifs"),
        ((0, 99), "/mnt/sub/x", "btrfs"),
        ((0, 99), "/mnt/m\u00fcll/x", "nfs"),
        ((0, 99), "/mnt/over/x", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path(device: tuple[int, int], path: str, kind: str) -> None:
    assert file_system(os.makedev(*device), path, MOUNTS) == kind


def test_where_nobody_tells_the_file_system() -> None:
    assert file_system(os.makedev(8, 1), "/x", "") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "virtiofs", "vboxsf"])
def test_file_systems_that_reach_other_machines_are_refused(
    path: Path, connect: Connect, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel has another boot id, so each would throw the other's claims away."""
    device = path.parent.stat().st_dev
    text = f"1 0 {os.major(device)}:{os.minor(device)} / / rw - {kind} server:/x rw\n"
    monkeypatch.setattr("dibs.backends.sqlite.files._mounts", lambda: text)
    with pytest.raises(dibs.StoreError, match=f"network.*{kind}"):
        connect().lock("a").acquire(timeout=5)
    assert not path.exists()
