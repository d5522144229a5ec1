"""SinkReshape: reshapes around linear layers and attention products vanish."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.simplify.simplify_shapes import SimplifyShapes
from relaxc.service.passes.simplify.sink_reshape import SinkReshape
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, assert_becomes, assert_unchanged, compute, graph, random, run, weights

BOTH = tvm.transform.Sequential([SinkReshape(), SimplifyShapes()])


def rows(x: Any) -> Any:
    return op.reshape(x, [6, x.ty.shape[-1] if x.ty.ndim == 3 else 4])


def test_torchs_linear_layer_and_its_epilogue_keep_their_rows() -> None:
    weight, bias = weights(4, 5), weights(5)
    given = graph(
        lambda x, r: op.add(
            op.reshape(op.nn.gelu(op.add(bias, op.matmul(op.reshape(x, [6, 4]), weight))), [2, 3, 5]), r
        ),
        x=(2, 3, 4),
        r=(2, 3, 5),
    )
    expected = graph(lambda x, r: op.add(op.nn.gelu(op.add(bias, op.matmul(x, weight))), r), x=(2, 3, 4), r=(2, 3, 5))
    assert_becomes(given, BOTH, expected)


def test_symbolic_rows() -> None:
    weight = weights(4, 5)

    def given(x: Any) -> Any:
        batch, length = x.ty.shape[0], x.ty.shape[1]
        return op.reshape(op.nn.relu(op.matmul(op.reshape(x, [batch * length, 4]), weight)), [batch, length, 5])

    expected = graph(lambda x: op.nn.relu(op.matmul(x, weight)), x=("b", "s", 4))
    assert_becomes(graph(given, x=("b", "s", 4)), BOTH, expected)


def test_attention_products_keep_their_batch() -> None:
    given = graph(
        lambda q, k, m: op.nn.softmax(
            op.add(op.reshape(op.matmul(op.reshape(q, [6, 4, 5]), op.reshape(k, [6, 5, 4])), [2, 3, 4, 4]), m), axis=-1
        ),
        q=(2, 3, 4, 5),
        k=(2, 3, 5, 4),
        m=(2, 1, 1, 4),
    )
    expected = graph(
        lambda q, k, m: op.nn.softmax(op.add(op.matmul(q, k), m), axis=-1),
        q=(2, 3, 4, 5),
        k=(2, 3, 5, 4),
        m=(2, 1, 1, 4),
    )
    assert_becomes(given, BOTH, expected)


def test_after_heads_the_rows_of_the_result_are_the_layers() -> None:
    weight, bias = weights(8, 8), weights(8)
    given = graph(
        lambda x, r: op.add(op.reshape(op.add(op.matmul(op.reshape(x, [6, 8]), weight), bias), [2, 3, 8]), r),
        x=(2, 3, 4, 2),
        r=(2, 3, 8),
    )
    expected = graph(
        lambda x, r: op.add(op.add(op.matmul(op.reshape(x, [2, 3, 8]), weight), bias), r),
        x=(2, 3, 4, 2),
        r=(2, 3, 8),
    )
    assert_becomes(given, BOTH, expected)


def test_residuals_of_one_shape_sink_together() -> None:
    given = graph(
        lambda x, y: op.reshape(op.add(op.reshape(x, [6, 4]), op.reshape(y, [6, 4])), [2, 3, 4]),
        x=(2, 3, 4),
        y=(2, 3, 4),
    )
    assert_becomes(given, BOTH, graph(op.add, x=(2, 3, 4), y=(2, 3, 4)))


def test_norms_over_the_last_axis() -> None:
    ones, zeros = constant(np.ones(4, "float32")), constant(np.zeros(4, "float32"))
    given = graph(
        lambda x: op.reshape(op.nn.layer_norm(op.reshape(x, [6, 4]), ones, zeros, axes=-1), [2, 3, 4]), x=(2, 3, 4)
    )
    assert_becomes(given, BOTH, graph(lambda x: op.nn.layer_norm(x, ones, zeros, axes=-1), x=(2, 3, 4)))


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.add(op.reshape(x, [4, 6]), weights(6)),  # another last axis: the vector would not fit
        lambda x: op.add(op.reshape(x, [2, 12]), weights(2, 12)),
        lambda x: op.nn.softmax(op.reshape(x, [6, 4]), axis=0),
        lambda x: op.matmul(op.reshape(x, [8, 3]), weights(3, 5)),
        lambda x: op.matmul(weights(5, 6), op.reshape(x, [6, 4])),
    ],
)
def test_what_a_reshape_changes_stays_after_it(build: Any) -> None:
    assert_unchanged(graph(build, x=(2, 3, 4)), SinkReshape())


def test_the_numbers_stay() -> None:
    def net(x: Any) -> Any:
        hidden = op.nn.gelu(op.add(weights(8), op.matmul(op.reshape(x, [6, 4]), weights(4, 8))))
        heads = op.permute_dims(op.reshape(op.reshape(hidden, [2, 3, 8]), [2, 3, 2, 4]), [0, 2, 1, 3])
        scores = op.matmul(op.reshape(heads, [4, 3, 4]), op.permute_dims(op.reshape(heads, [4, 3, 4]), [0, 2, 1]))
        mixed = op.matmul(op.nn.softmax(scores, axis=-1), op.reshape(heads, [4, 3, 4]))
        back = op.reshape(op.permute_dims(op.reshape(mixed, [2, 2, 3, 4]), [0, 2, 1, 3]), [6, 8])
        return op.add(op.reshape(op.matmul(back, weights(8, 4)), [2, 3, 4]), x)

    module, x = graph(net, x=(2, 3, 4)), random(2, 3, 4)
    optimized = optimize(module, TARGET, CompileOptions())
    assert optimized.report.fusions.get("matmul + residual") == 1
    np.testing.assert_allclose(run(optimized, x)[0], compute(module, x)[0], rtol=1e-5, atol=1e-5)
