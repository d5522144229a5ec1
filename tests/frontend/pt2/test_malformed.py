"""Every damaged or hostile archive gives its documented error, soon, and runs nothing that it carries."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from service import frontend
from service.errors import RelaxcError
from tests.malformed_pt2 import MALFORMED


@pytest.mark.parametrize("name", MALFORMED)
def test_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, code = MALFORMED[name]
    path = build(tmp_path)
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    with pytest.raises(RelaxcError) as raised:
        frontend.load(path, frontend.identify(path))
    assert raised.value.code == code, raised.value.message
    assert raised.value.message and raised.value.remedy
    assert time.monotonic() - started < 10
    assert not (tmp_path / "pwned").exists()
