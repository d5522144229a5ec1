"""`relaxc config`: what is set, by which variable; and variables that are no settings."""

from __future__ import annotations

import json

import pytest

from relaxc.service.cli.main import main
from relaxc.service.config import settings


@pytest.fixture(autouse=True)
def _afresh() -> None:
    settings.cache_clear()


def test_it_shows_what_is_set_and_hides_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELAXC_PORT", "9000")
    monkeypatch.setenv("RELAXC_API_KEY", "rk_secret")
    assert main(["config"]) == 0
    shown = capsys.readouterr().out
    assert "RELAXC_PORT" in shown
    assert "9000" in shown
    assert "RELAXC_HOST" not in shown
    assert "rk_secret" not in shown
    assert main(["config", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["settings"]
    assert rows["RELAXC_PORT"] == {"value": 9000, "default": 8000, "set": True}
    assert rows["RELAXC_HOST"]["set"] is False


def test_a_variable_that_is_no_setting_is_told_with_its_neighbour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELAXC_CAHCE_DIR", "/somewhere")
    assert main(["version"]) == 0
    assert "RELAXC_CAHCE_DIR is no setting of relaxc; did you mean RELAXC_CACHE_DIR?" in capsys.readouterr().err
