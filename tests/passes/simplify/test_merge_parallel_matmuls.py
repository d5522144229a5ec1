"""Products of one tensor become one where their readers take slices for nothing, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tvm import relax

from relaxc.schedules.hardware import cpu_of
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.recognize.recognize_attention import RecognizeAttention
from relaxc.service.passes.simplify.merge_parallel_matmuls import MergeParallelMatmuls
from tests.passes.graphs import TARGET, assert_becomes, assert_unchanged, compute, graph, ops, random, weights

R = relax.op
WIDTHS = (8, 4, 12)
WEIGHTS = [weights(6, width, seed=i) for i, width in enumerate(WIDTHS)]
BIASES = [weights(8, seed=5), None, weights(12, seed=6)]


def head(x: relax.Expr, width: int, *sizes: Any) -> relax.Expr:
    """`[…, width] → [*sizes, width / 4, 4]` with the last but one axis moved forward."""
    rank = len(sizes)
    return R.permute_dims(R.reshape(x, [*sizes, width // 4, 4]), [*range(rank - 1), rank, rank - 1, rank + 1])


def apart(x: relax.Expr, biases: list[Any]) -> tuple[relax.Expr, ...]:
    products = [R.matmul(x, weight) for weight in WEIGHTS]
    sums = [p if bias is None else R.add(p, bias) for p, bias in zip(products, biases, strict=True)]
    return tuple(head(p, width, 2, 5) for p, width in zip(sums, WIDTHS, strict=True))


def merged(x: relax.Expr, bias: Any) -> tuple[relax.Expr, ...]:
    whole = R.matmul(x, constant(np.concatenate([w.value.numpy() for w in WEIGHTS], axis=1)))
    whole = whole if bias is None else R.add(whole, bias)
    starts = [0, 8, 12, 24]
    parts = [R.strided_slice(whole, [2], [a], [b], [1], assume_inbound=True) for a, b in pairwise(starts)]
    return tuple(head(part, width, 2, 5) for part, width in zip(parts, WIDTHS, strict=True))


def test_three_products_with_some_biases() -> None:
    filled = [np.zeros(4, "float32") if bias is None else bias.value.numpy() for bias in BIASES]
    given = graph(lambda x: apart(x, BIASES), x=(2, 5, 6))
    expected = graph(lambda x: merged(x, constant(np.concatenate(filled))), x=(2, 5, 6))
    assert_becomes(given, MergeParallelMatmuls(), expected)
    with TARGET:
        changed = MergeParallelMatmuls()(given)
    for got, want in zip(compute(changed, random(2, 5, 6)), compute(given, random(2, 5, 6)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_without_biases() -> None:
    given = graph(lambda x: apart(x, [None] * 3), x=(2, 5, 6))
    assert_becomes(given, MergeParallelMatmuls(), graph(lambda x: merged(x, None), x=(2, 5, 6)))


def test_symbolic_rows() -> None:
    def net(x: relax.Expr) -> tuple[relax.Expr, ...]:
        batch, length, _ = x.ty.shape
        return tuple(head(R.matmul(x, w), width, batch, length) for w, width in zip(WEIGHTS, WIDTHS, strict=True))

    given = graph(net, x=("b", "s", 6))
    with TARGET:
        changed = MergeParallelMatmuls()(given)
    assert ops(changed).count("matmul") == 1
    for got, want in zip(compute(changed, random(3, 7, 6)), compute(given, random(3, 7, 6)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def _activated(x: relax.Expr) -> relax.Expr:
    """A gate and what it multiplies: the second product has the first in its epilogue."""
    return R.multiply(R.nn.silu(R.matmul(x, WEIGHTS[0])), R.matmul(x, weights(6, 8, seed=9)))


def _of_different_tensors(x: relax.Expr) -> tuple[relax.Expr, ...]:
    y = R.nn.relu(x)
    return head(R.matmul(x, WEIGHTS[0]), 8, 2, 5), head(R.matmul(y, WEIGHTS[2]), 12, 2, 5)


def _also_read_as_it_is(x: relax.Expr) -> tuple[relax.Expr, ...]:
    products = [R.matmul(x, WEIGHTS[0]), R.matmul(x, WEIGHTS[2])]
    return (*(head(p, width, 2, 5) for p, width in zip(products, (8, 12), strict=True)), *map(R.exp, products))


def _only_reshaped(x: relax.Expr) -> tuple[relax.Expr, ...]:
    return R.reshape(R.matmul(x, WEIGHTS[0]), [10, 8]), R.reshape(R.matmul(x, WEIGHTS[2]), [10, 12])


def _alone(x: relax.Expr) -> relax.Expr:
    return head(R.matmul(x, WEIGHTS[0]), 8, 2, 5)


@pytest.mark.parametrize("net", [_activated, _of_different_tensors, _also_read_as_it_is, _only_reshaped, _alone])
def test_what_stays(net: Callable[..., Any]) -> None:
    assert_unchanged(graph(net, x=(2, 5, 6)), MergeParallelMatmuls())


def test_attention_reads_the_slices_in_place() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        q, k, v = (R.reshape(R.matmul(x, weights(6, 8, seed=i)), [2, 5, 2, 4]) for i in range(3))
        scores = R.matmul(R.permute_dims(q, [0, 2, 1, 3]), R.permute_dims(k, [0, 2, 3, 1]))
        product = R.matmul(R.nn.softmax(scores, -1), R.permute_dims(v, [0, 2, 1, 3]))
        return R.reshape(R.permute_dims(product, [0, 2, 1, 3]), [2, 5, 8])

    given = graph(net, x=(2, 5, 6))
    with TARGET:
        changed = RecognizeAttention(cpu_of(TARGET))(MergeParallelMatmuls()(given))
        changed = relax.transform.DeadCodeElimination()(changed)
    assert ops(changed) == ["matmul", "call_tir"]
    for got, want in zip(compute(changed, random(2, 5, 6)), compute(given, random(2, 5, 6)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
