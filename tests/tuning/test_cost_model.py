"""The cost model where torch is not to be imported: it runs beside libraries that look for torch among the modules."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from relaxc.service.tuning import cost_model
from relaxc.service.tuning.cost_model import CostModel


def test_the_mark_of_torch_is_away_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with cost_model._without_torch():
        assert "torch" not in sys.modules
        with pytest.raises(ModuleNotFoundError, match="torch is not imported here"):
            import torch
    assert sys.modules["torch"] is None
    with pytest.raises(ModuleNotFoundError, match=r"None in sys\.modules"):
        import torch  # noqa: F401
    model = CostModel(0)
    rows = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    model.train(rows, rows[:, 0])
    speeds, unsure = model.predict(rows)
    assert speeds.shape == unsure.shape == (16,)
    assert sys.modules["torch"] is None


def test_torch_stays_where_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = type(sys)("torch")
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    with cost_model._without_torch():
        assert sys.modules["torch"] is stand_in
