"""The drill of the disk that fills, for half a minute; `make drill` runs it longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disks import CannotMount
from tests.drills.disk import run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_accepted_job_is_lost_on_a_disk_that_fills(tmp_path: Path) -> None:
    try:
        found = run(seconds=30, clients=16, seed=1, folder=tmp_path / "drill")
    except CannotMount as error:
        pytest.skip(str(error))
    assert found["wrong"] == []
    assert found["times full"] >= 1
    assert found["accepted"] >= 5
    assert found["refused"] >= 5
