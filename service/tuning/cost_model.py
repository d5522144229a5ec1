"""Predicts how fast points are from those that were measured: boosted trees, several of them to know what is unsure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["CostModel"]

_MODELS = 4
_ROUNDS = 60
_TREES = {
    "max_depth": 6,
    "eta": 0.2,
    "min_child_weight": 0.5,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "objective": "reg:squarederror",
    "tree_method": "exact",
    "verbosity": 0,
    # More threads than one would take cores that something may be timed on, and sum in another order.
    "nthread": 1,
}


class CostModel:
    """XGBoost (Chen and Guestrin, 2016) on relative speeds in 0..1; equal data and seed give equal predictions.

    After Chen et al., 'Learning to optimize tensor programs' (2018). Each of the models is trained on other samples of
    the rows and columns: where they disagree, little is known.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._boosters: list[Any] = []

    def train(self, rows: Any, speeds: Any) -> None:
        """Forget what it knew, and learn that the points with features `rows` have `speeds`."""
        with _without_torch():
            import xgboost

            data = xgboost.DMatrix(rows, label=speeds, nthread=1)
            self._boosters = [
                xgboost.train({**_TREES, "seed": self._seed * _MODELS + i}, data, _ROUNDS) for i in range(_MODELS)
            ]

    def predict(self, rows: Any) -> tuple[Any, Any]:
        """Return the speeds of points by their features, and how far the models are apart (a standard deviation)."""
        with _without_torch():
            import xgboost

            data = xgboost.DMatrix(rows, nthread=1)
            found = np.stack([booster.predict(data) for booster in self._boosters])
        return found.mean(axis=0), found.std(axis=0)


@contextmanager
def _without_torch() -> Iterator[None]:
    """Leave no mark that torch is not to be imported, and let nobody import it.

    The mark is a None among the modules; what scikit-learn has of array libraries, which xgboost imports where it is
    installed, takes that for torch.
    """
    marked = sys.modules.get("torch", _without_torch) is None
    if not marked:
        yield
        return
    del sys.modules["torch"]
    refusal = _NoTorch()
    sys.meta_path.insert(0, refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(refusal)
        sys.modules["torch"] = None  # type: ignore[assignment]


class _NoTorch:
    """Finds no torch."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise ModuleNotFoundError for it; other modules are for others to find."""
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(f"{name} is not imported here", name=name)
