"""What is said of a record that was measured again."""

from __future__ import annotations

import pytest

from relaxc.service import drift
from tests.records.samples import record


@pytest.mark.parametrize(
    ("untuned_s", "seconds", "gain", "verdict"),
    [
        (2.0, 1.0, 2.0, "holds"),
        (2.0, 1.9, 2.0, "holds"),
        (2.0, 1.0, 1.5, "drifted"),
        (2.0, 1.0, 2.5, "drifted"),
        (2.0, 1.0, 0.8, "slower"),
        (1.0, 3.0, 0.97, "holds"),
        (None, 1.1, 1.0, "holds"),
        (None, 1.3, 1.0, "drifted"),
        (2.0, 1.3, None, "drifted"),
    ],
    ids=[
        "as it was", "on a slower machine", "it gains less", "it gains more", "it loses", "within the spread",
        "no gain was recorded", "nor is its time the same", "the untuned kernel does not run",
    ],
)  # fmt: skip
def test_a_record_holds_where_it_gains_what_it_gained(
    untuned_s: float | None, seconds: float, gain: float | None, verdict: str
) -> None:
    assert drift._verdict(record(seconds=1.0, untuned_s=untuned_s), seconds, gain, spread=0.05) == verdict
