"""`doctor`: what a real probe finds here, and an exit code that a script can read."""

from __future__ import annotations

import json

import pytest

from relaxc.service.cli.main import main
from relaxc.service.config import settings
from relaxc.service.process import probe


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_it_says_what_this_machine_gives(
    sandbox: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELAXC_SANDBOX", sandbox)
    settings.cache_clear()
    try:
        code = main(["doctor", "--json"])
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["g++"].startswith("/")
    assert code == (1 if found["gaps"] or found["lacks"] else 0)
    assert bool(found["gaps"] or found["limits"]["missing"]) == bool(found["advice"])
    if sandbox == "off":
        assert code == 1
        assert "RELAXC_SANDBOX=off" in found["advice"][0]


def test_people_read_the_gaps_and_what_would_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "probed", lambda: {"error": "no process may be forked"})
    assert main(["doctor"]) == 1
    assert "A hostile model could no process may be forked" not in (said := capsys.readouterr().out)
    assert "no process may be forked" in said
