"""The drill of a Ray cluster, where slow tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.child import drilled


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_jobs_survive_twenty_deaths_of_nodes(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed (pip install 'relaxc[ray]')")
    pytest.importorskip("moto")
    found = drilled("ray", tmp_path / "drill", rounds=20, seed=7)
    assert found["jobs"] >= 200
    assert found["killed"]["node"] >= 10
    assert all(sum(claims.values()) > 0 for claims in found["claims"].values())
