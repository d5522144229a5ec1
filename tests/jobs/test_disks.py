"""What of a disk stays free: asked anew each time, on a file system of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from relaxc.service.errors import StoreUnwritable
from relaxc.service.jobs.disks import Disks
from tests.disks import small_disk

MIB = 1 << 20


def test_a_disk_without_room_for_files_is_short_whatever_bytes_it_has(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 32 * MIB) as folder:
        disks = Disks(MIB, folder)
        assert disks.short() == ""
        subprocess.run(["mount", "-o", "remount,nr_inodes=1500", folder], check=True)
        with pytest.raises(StoreUnwritable, match="more files"):
            disks.admit()


def test_nothing_is_taken_under_the_reserve_and_all_again_when_there_is_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 32 * MIB) as folder:
        disks = Disks(8 * MIB, tmp_path, folder)
        disks.admit(20 * MIB)
        with pytest.raises(StoreUnwritable, match="RELAXC_DISK_RESERVE_BYTES") as caught:
            disks.admit(25 * MIB)
        assert caught.value.http_status == 507
        (folder / "ballast").write_bytes(bytes(26 * MIB))
        assert disks.short()
        assert disks.free_bytes() < 8 * MIB
        with pytest.raises(StoreUnwritable):
            disks.admit()
        (folder / "ballast").unlink()
        disks.admit()
        assert disks.short() == ""
