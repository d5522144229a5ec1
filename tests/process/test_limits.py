"""What a job may use: of a tuning the time is its own."""

from __future__ import annotations

import pytest

from relaxc.service.config import settings
from relaxc.service.process.limits import Limits


@pytest.mark.parametrize("time_s", [1.0, 3600.0])
def test_a_tuning_may_take_its_time_and_some_more_and_no_more_of_anything_else(time_s: float) -> None:
    found = Limits(60.0, 1 << 30, 1 << 20).for_tuning(time_s)
    assert time_s < found.timeout_s <= time_s + 3600
    assert (found.memory_bytes, found.file_bytes) == (1 << 30, 1 << 20)


def test_a_tuning_without_a_time_has_that_of_the_settings() -> None:
    assert Limits(60.0, 1, 1).for_tuning(None) == Limits(settings().tune_timeout_s, 1, 1)
