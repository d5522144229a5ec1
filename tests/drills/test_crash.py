"""The crash drill: a few rounds each time, fifty on each database where slow tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.child import drilled


@pytest.mark.slow
def test_two_rounds(tmp_path: Path) -> None:
    found = drilled("crash", tmp_path / "drill", rounds=2, database="sqlite", seed=1)
    assert sum(found["killed"].values()) >= 2
    assert found["jobs succeeded"] >= 2
    assert found["downloads"] >= 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_fifty_rounds(tmp_path: Path, database: str) -> None:
    found = drilled("crash", tmp_path / "drill", rounds=50, database=database, seed=7)
    assert min(found["killed"].get(kind, 0) for kind in ("server", "relaxc-zygote", "relaxc-guard", "relaxc-job")) > 0
    assert {"upload", "wait", "download"} <= set(found["while clients were at"])
