"""What a PrimFunc is counted to compute."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from relaxc.schedules.ir.work import work_of


def flops(result: te.Tensor, *operands: te.Tensor) -> Any:
    """The FLOPs that are counted for a compute over `operands`."""
    return work_of(te.create_prim_func([*operands, result])).to_dict()["flops"]


def test_operators_on_values_count_and_those_on_indices_do_not() -> None:
    a = te.placeholder((8, 4), name="a")
    assert flops(te.compute((8,), lambda i: a[i, (i * 3 + 1) % 4] * a[i, 0] + 1.0), a) == 16


def test_of_a_choice_by_an_index_the_longer_branch_counts() -> None:
    a = te.placeholder((8, 4), name="a")

    def row(i: Any) -> Any:
        last = tirx.Select(i == 1, a[i, 0] + a[i, 1] + a[i, 2], a[i, 3])
        return tirx.Select(i == 0, a[i, 0] - a[i, 1], last) * 2.0

    assert flops(te.compute((8,), row), a) == 8 * 3


def test_of_a_choice_by_a_value_both_branches_count() -> None:
    a = te.placeholder((8,), name="a")
    assert flops(te.compute((8,), lambda i: tirx.Select(a[i] > 0.0, a[i] + 1.0, a[i] * 2.0)), a) == 16


def test_winograd_counts_its_products_and_transforms() -> None:
    from relaxc.schedules.cpu.conv import winograd_compute
    from relaxc.schedules.operators import Conv2d
    from relaxc.schedules.plan import Plan

    data, weight = te.placeholder((1, 4, 56, 56, 16), name="d"), te.placeholder((2, 6, 6, 64, 32), name="w")
    image = {"batch": 1, "channels": 64, "height": 56, "width": 56}
    op = Conv2d(**image, filters=64, kernel=(3, 3), padding=(1, 1, 1, 1))
    result = winograd_compute.conv2d(data, weight, plan=Plan(op, "cpu.winograd", {"size": 4, "padded": 196}))
    products = 2 * 36 * 64 * 64 * 196
    assert products < flops(result, data, weight) < 1.6 * products
