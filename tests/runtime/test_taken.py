"""What is compared in the place of draws that a reference makes nothing of, and how often it is run for that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from relaxc.service.errors import ModelMalformed
from relaxc.service.runtime.taken import Taken
from relaxc.service.signature import Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", "float32", (4, 6)), TensorSpec("k", "int64", (2,))),
                      (TensorSpec("y", "float32", (4, 6)),))  # fmt: skip
X = np.ones((4, 6), "float32")


class Reference:
    """Numbers where the second of two places is the size of `x`, else what `otherwise` is; it counts its runs."""

    def __init__(self, otherwise: float | None = np.nan) -> None:
        self.runs, self.otherwise = 0, otherwise

    def __call__(self, inputs: Mapping[str, Any], /) -> dict[str, Any]:
        self.runs += 1
        if inputs["k"].tolist() == [4, 6]:
            return {"y": inputs["x"]}
        if self.otherwise is None:
            raise ModelMalformed("it stops")
        return {"y": np.full_like(inputs["x"], self.otherwise)}


def draw() -> dict[str, Any]:
    return {"x": X, "k": np.array([9, 9])}


def test_what_helped_one_draw_is_tried_first_for_the_next() -> None:
    taken, reference = Taken(SIGNATURE), Reference()
    assert [inputs["k"].tolist() for inputs, _ in taken.of(reference, draw())] == [[9, 9], [4, 6]]
    assert reference.runs > 2
    reference.runs = 0
    assert [inputs["k"].tolist() for inputs, _ in taken.of(reference, draw())] == [[9, 9], [4, 6]]
    assert reference.runs == 2


def test_draws_that_nothing_helps_cost_twice_one_in_all() -> None:
    taken, reference = Taken(SIGNATURE), Reference()
    given = {"x": X, "k": np.array([9, 9, 9])}
    runs = []
    for _ in range(12):
        reference.runs = 0
        ((inputs, wanted),) = taken.of(reference, given)
        assert inputs is given and np.isnan(wanted["y"]).all()
        runs.append(reference.runs - 1)
    assert sum(runs) <= 2 * runs[0] and runs[-1] == 0


def test_a_reference_that_stops_at_all_says_why() -> None:
    with pytest.raises(ModelMalformed, match="it stops"):
        Taken(SIGNATURE).of(Reference(None), {"x": X, "k": np.array([9, 9, 9])})
