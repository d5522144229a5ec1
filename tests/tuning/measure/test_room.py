"""A full disk ends a run with an error and no verdict on a candidate; want of memory costs the one that wants it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relaxc.service.errors import StoreUnwritable
from relaxc.service.tuning.measure import Measurer, Outcome
from relaxc.service.tuning.task import Task
from tests.tuning.measure.conftest import LIMITS, fault

Make = Callable[..., Measurer]
DISK_BYTES = 64 << 20


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of 64 MiB."""
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leaves not one block."""
    name = disk / "everything"
    with name.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize)
    return name


@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_build(measurer: Make, faulty: Task, disk: Path) -> None:
    made = measurer(folder=disk / "tuning")
    assert [o.kind for o in made.measure(faulty, [fault("none")])] == ["measured"]
    filling = fill(disk)
    ended: list[Outcome] = []
    with pytest.raises(StoreUnwritable, match=r"cannot build candidates in .*: No space left on device") as full:
        made.measure(faulty, [fault("none")] * 3, ended.append)
    assert not ended  # a candidate is not to blame: nothing is noted of it
    assert "--resume" in full.value.remedy
    filling.unlink()
    assert [o.kind for o in made.measure(faulty, [fault("none")] * 3)] == ["measured"] * 3
    made.close()


@pytest.mark.slow
def test_a_disk_that_is_full_before_the_untuned_kernel(measurer: Make, faulty: Task, disk: Path) -> None:
    made = measurer(folder=disk / "tuning")
    filling = fill(disk)
    with pytest.raises(StoreUnwritable):
        made.measure(faulty, [fault("none")])
    filling.unlink()
    assert [o.kind for o in made.measure(faulty, [fault("none")])] == ["measured"]
    made.close()


def test_a_folder_that_cannot_be_made(measurer: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable, match="Not a directory"):
        measurer(folder=tmp_path / "file" / "tuning")


@pytest.mark.slow
@pytest.mark.parametrize("greedy", ["4-gib", "builder-4-gib"])
def test_what_wants_more_memory_than_it_may_have_is_one_lost_trial(greedy: str, measurer: Make, faulty: Task) -> None:
    """The limit is RLIMIT_DATA: the machine has the memory, and with a higher limit the process gets it."""
    points = [fault("none"), fault(greedy), fault("none")]
    kinds = {
        limit: [o.kind for o in measurer(limits=replace(LIMITS, memory_bytes=limit << 30)).measure(faulty, points)]
        for limit in (2, 8)
    }
    runner = greedy == "4-gib"
    assert kinds[2] == ["measured", "crashed" if runner else "build-failed", "measured"]
    assert kinds[8] == ["measured", "wrong" if runner else "measured", "measured"]
