"""MergeEqualCalls: Before and Expected."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.simplify.merge_equal_calls import MergeEqualCalls
from tests.passes.graphs import assert_becomes, assert_unchanged, graph, weights


def shared(call: Any) -> Any:
    """`call(x) * call(x)`, computed once."""

    def build(x: Any) -> Any:
        once = relax.BlockBuilder.current().emit(call(x))
        return op.multiply(once, once)

    return build


def test_equal_chains_merge() -> None:
    def chain(x: Any) -> Any:
        return op.tanh(op.add(op.exp(x), constant(np.float32(2))))

    given = graph(lambda x: op.multiply(chain(x), chain(x)), x=("n", 4))
    assert_becomes(given, MergeEqualCalls(), graph(shared(chain), x=("n", 4)))


def test_one_weight_merges() -> None:
    weight = weights(4, 8)
    given = graph(lambda x: op.multiply(op.matmul(x, weight), op.matmul(x, weight)), x=(2, 4))
    assert_becomes(given, MergeEqualCalls(), graph(shared(lambda x: op.matmul(x, weight)), x=(2, 4)))


def test_tuples_of_operands_merge() -> None:
    def both(x: Any) -> Any:
        return op.concat([x, x], axis=0)

    given = graph(lambda x: op.multiply(both(x), both(x)), x=("n", 4))
    assert_becomes(given, MergeEqualCalls(), graph(shared(both), x=("n", 4)))


def test_other_attributes_operands_and_shapes_stay() -> None:
    def net(x: Any) -> Any:
        return (
            op.nn.softmax(x, axis=0),
            op.nn.softmax(x, axis=1),
            op.add(x, constant(np.float32(1))),
            op.add(x, constant(np.float32(2))),
            op.reshape(x, [2, 8]),
            op.reshape(x, [8, 2]),
            op.astype(x, "float16"),
            op.astype(x, "float64"),
        )

    assert_unchanged(graph(net, x=(4, 4)), MergeEqualCalls())
