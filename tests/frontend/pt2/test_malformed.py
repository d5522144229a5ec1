"""Every damaged or hostile archive gives its documented error, and runs nothing that it carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxc.service import frontend
from relaxc.service.errors import RelaxcError
from tests.malformed_pt2 import MALFORMED


@pytest.mark.parametrize("name", MALFORMED)
def test_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, code = MALFORMED[name]
    path = build(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RelaxcError) as raised:
        frontend.load(path, frontend.identify(path))
    assert raised.value.code == code, raised.value.message
    assert raised.value.message and raised.value.remedy
    assert not (tmp_path / "pwned").exists()
