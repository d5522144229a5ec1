"""Integers that rounding decides are told from wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relaxc.service.runtime.compare import compare
from relaxc.service.runtime.ties import ties_of

Array = np.ndarray[Any, Any]

SCORES = np.random.default_rng(0).standard_normal((1000, 8)).astype("float32")
SCORES[17, 3] = SCORES[17, 5] = 9.0  # a tie


def argmax(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """A reference with one integer output."""
    return {"classes": inputs["scores"].argmax(-1)}


def test_an_argmax_of_equal_scores_is_a_tie() -> None:
    ties = ties_of(argmax, {"scores": SCORES}, argmax({"scores": SCORES}), seed=0)
    assert np.flatnonzero(ties["classes"]).tolist() == [17]


def test_a_tie_may_differ_and_is_counted_and_another_element_may_not() -> None:
    want = argmax({"scores": SCORES})
    ties = ties_of(argmax, {"scores": SCORES}, want, seed=0)
    tied, wrong = (dict(want, classes=want["classes"].copy()) for _ in range(2))
    tied["classes"][17] = 5
    wrong["classes"][18] += 1
    passed = compare(tied, want, ties=ties)
    assert passed.passed
    assert (passed.outputs[0].ties, passed.outputs[0].compared) == (1, 999)
    failed = compare(wrong, want, ties=ties)
    assert failed.reason == "classes: 1 of 1000 int64 values differ; they must be equal"


def test_an_output_that_is_noise_has_no_ties() -> None:
    scores = {"scores": np.ones((1000, 8), "float32")}
    assert ties_of(argmax, scores, argmax(scores), seed=0) == {}


def test_without_floating_inputs_nothing_can_be_told() -> None:
    def double(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": inputs["x"] * 2}

    inputs = {"x": np.arange(4)}
    assert ties_of(double, inputs, double(inputs), seed=0) == {}
