"""Arguments that any kernel survives: indices within bounds, divisors that are not zero, symbolic sizes put in."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx

from relaxc.service.tuning.measure.arguments import arguments_of


def gather(rows: int):
    """out[i, j] = table[index[i], j]"""
    table = te.placeholder((rows, 4), name="table")
    index = te.placeholder((64,), "int64", name="index")
    return te.create_prim_func([table, index, te.compute((64, 4), lambda i, j: table[index[i], j], name="out")])


@pytest.mark.parametrize("rows", [1, 2, 50])
def test_indices_reach_every_row_and_no_further(rows: int) -> None:
    found = arguments_of(gather(rows), {}, seed=0, positive=False)
    index = np.asarray(found.values[1])
    assert index.dtype == np.int64 and index.min() >= 0 and index.max() < rows
    assert rows < 50 or len(np.unique(index)) > 20
    assert (found.outputs, found.updated, found.judge) == ((2,), (), "float32")


def test_the_same_seed_gives_the_same(rows: int = 5) -> None:
    one, other = (arguments_of(gather(rows), {}, seed=3, positive=False) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one.values, other.values, strict=True))


def test_divisors_are_not_zero() -> None:
    x, y = te.placeholder((8,), "int32", name="x"), te.placeholder((8,), "int32", name="y")
    func = te.create_prim_func([x, y, te.compute((8,), lambda i: te.floordiv(x[i], y[i]), name="z")])
    assert np.all(np.asarray(arguments_of(func, {}, seed=0, positive=False).values[1]) == 1)


def test_symbolic_sizes_are_put_in() -> None:
    n = tirx.Var("n", "int64")
    x = te.placeholder((n, 2 * n), name="x")
    func = te.create_prim_func([x, te.compute((n, 2 * n), lambda i, j: x[i, j] + 1, name="y")])
    found = arguments_of(func, {"n": 3}, seed=0, positive=False)
    assert np.shape(found.values[0]) == (3, 6)
    with pytest.raises(ValueError, match="symbolic dim n"):
        arguments_of(func, {}, seed=0, positive=False)


def test_positive_floats_where_wanted() -> None:
    found = arguments_of(gather(9), {}, seed=0, positive=True)
    assert np.asarray(found.values[0]).min() >= 0
