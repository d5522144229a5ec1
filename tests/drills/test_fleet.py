"""The fleet drill: a few rounds, and all of them where slow tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.child import drilled


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_jobs_land_where_they_belong_through_twenty_deaths(tmp_path: Path) -> None:
    pytest.importorskip("moto")
    found = drilled("fleet", tmp_path / "drill", rounds=20, seed=7)
    assert found["jobs"] >= 200
    assert found["killed"]["worker"] >= 3
    assert all(sum(claims.values()) > 0 for claims in found["claims"].values())
