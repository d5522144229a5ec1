"""A variable holds for a moment, whatever happens in it."""

from __future__ import annotations

import os

import pytest

from relaxc.service.process.environment import environment_variable

NAME = "RELAXC_TEST_VARIABLE"


@pytest.mark.parametrize("before", [None, "old"])
def test_what_was_there_before_is_back_even_after_an_error(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    with pytest.raises(KeyError), environment_variable(NAME, "new"):
        assert os.environ[NAME] == "new"
        raise KeyError
    assert os.environ.get(NAME) == before
