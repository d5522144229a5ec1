"""Products of one row with a transposed operand become sums over the rows of that operand; others stay."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from relaxc.service.lowering import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.passes.layout.one_row_products import OneRowProducts
from relaxc.service.request import CompileOptions
from tests.passes.graphs import assert_unchanged, compute, graph, ops, random, weights

R = relax.op


def scores(q: relax.Expr, k: relax.Expr) -> relax.Expr:
    rank = k.ty.ndim
    return R.matmul(q, R.permute_dims(k, [*range(rank - 2), rank - 1, rank - 2]))


@pytest.mark.parametrize("shapes", [((2, 3, 1, 16), (2, 3, 9, 16)), ((3, 1, 16), (1, 9, 16)), ((2, 1, 16), (9, 16))])
def test_a_row_is_multiplied_with_each_row(shapes: tuple[tuple[int, ...], ...]) -> None:
    module = graph(scores, q=shapes[0], k=shapes[1])
    made = OneRowProducts()(module)
    assert ops(made) == ["multiply", "sum", "expand_dims"]
    q, k = random(*shapes[0]), random(*shapes[1], seed=1)
    want = q @ np.swapaxes(k, -1, -2)
    (got,) = compute(made, q, k)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_more_rows_stay_a_product() -> None:
    assert_unchanged(graph(scores, q=(2, 2, 16), k=(2, 9, 16)), OneRowProducts())


def test_weights_stay_a_product() -> None:
    assert_unchanged(graph(lambda q: scores(q, weights(9, 16)), q=(2, 1, 16)), OneRowProducts())


def test_sizes_that_are_not_known_stay_a_product() -> None:
    assert_unchanged(graph(scores, q=("b", 1, 16), k=("b", 9, 16)), OneRowProducts())


def test_a_cache_of_keys_is_not_transposed() -> None:
    """The keys before and the new one are joined and read as they lie."""

    def build(q: relax.Expr, old: relax.Expr, new: relax.Expr) -> relax.Expr:
        keys = R.permute_dims(R.concat([old, new], 2), [0, 1, 3, 2])
        return R.nn.softmax(R.matmul(q, keys))

    module = graph(build, q=(1, 4, 1, 32), old=(1, 4, 63, 32), new=(1, 4, 1, 32))
    spec = resolve("auto")
    report = schedule(optimize(module, to_tvm(spec), CompileOptions()).module, spec).report
    assert not [row for row in report if "transpose" in row["function"]]
    assert "cpu.rows" in [row["rule"] for row in report]
