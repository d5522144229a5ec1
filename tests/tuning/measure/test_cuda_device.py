"""How often a kernel is called in a graph, and over how many arguments its calls rotate."""

from __future__ import annotations

import pytest

from relaxc.service.tuning.measure.cuda_device import calls_in_graph, copies_for


@pytest.mark.parametrize(
    ("call_s", "lists", "count"), [(5e-6, 32, 100), (100e-6, 4, 30), (100e-6, 32, 32), (0.1, 32, 2), (0.0, 3, 100)]
)
def test_a_graph_takes_three_milliseconds(call_s: float, lists: int, count: int) -> None:
    assert calls_in_graph(call_s, lists) == count


def test_arguments_rotate_over_more_than_the_cache() -> None:
    assert [copies_for(size) for size in (1, 1 << 20, 30 << 20, 1 << 30)] == [32, 32, 5, 2]
