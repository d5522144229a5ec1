"""What makes a comparison that passed a weak one."""

from __future__ import annotations

import numpy as np

from relaxc.service.runtime.compare import compare
from relaxc.service.runtime.verification import Verification
from relaxc.service.runtime.weak import Seen


def test_outputs_that_say_little_are_named() -> None:
    rng, seen = np.random.default_rng(0), Seen()
    same, once = rng.standard_normal(4).astype("float32"), np.zeros((0, 4), "int64")
    for count in (0, 2):
        seen.add(
            {
                "right": rng.standard_normal((2, 3)).astype("float32"),
                "flat": np.full(3, 0.5, "float32"),
                "same": same,
                "none": once,
                "nan": np.full(2, np.nan, "float32"),
                "later": np.ones((count, 4), "int64"),
                "sizes": np.array([2, 3]),
            }
        )
    weak = seen.weak()
    assert weak.keys() == {"flat", "same", "none", "nan"}
    assert "0.5" in weak["flat"]
    assert seen.weak({"none", "nan"}).keys() == {"flat", "same"}


def test_what_has_nothing_to_compare_passes_as_weak() -> None:
    empty = {"y": np.zeros((0, 3), "float32")}
    found = compare(empty, empty)
    assert not found.passed
    weak = found.weakened({"y": "empty"})
    assert (weak.passed, weak.reason, weak.weak) == (True, "", ("y: empty",))
    assert Verification.from_dict(weak.to_dict()) == weak
    wrong = compare({"y": np.ones((1, 3), "float32")}, empty)
    assert not wrong.weakened({"y": "empty"}).passed
