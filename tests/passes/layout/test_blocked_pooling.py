"""Pooling, and what is computed of all pixels, stays blocked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.passes.graphs import graph, operators
from tests.passes.layout.blocked import blocked, inputs, same, weight

pytestmark = pytest.mark.sampled

R = relax.op


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_pooling_and_means_stay_blocked(pool: str, count_include_pad: bool) -> None:
    extra = {"count_include_pad": count_include_pad} if pool == "avg_pool2d" else {}

    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.conv2d(x, weight(12, 12, 1, 1))
        y = getattr(R.nn, pool)(y, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1), **extra)
        scale = R.mean(y, [2, 3], keepdims=True)
        return R.multiply(y, R.sigmoid(scale))

    module = graph(net, x=(1, 12, 15, 15))
    changed, reason = blocked(module)
    assert reason.endswith("1 packs and 1 unpacks")
    same(module, changed, *inputs((1, 12, 15, 15)))


@pytest.mark.parametrize("bins", [(1, 1), (2, 3), (6, 6), (4, 6)])
def test_adaptive_pooling(bins: tuple[int, int]) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        return R.nn.relu(R.nn.adaptive_avg_pool2d(R.nn.conv2d(x, weight(12, 12, 1, 1)), bins))

    module = graph(net, x=(1, 12, 6, 6))
    changed, _ = blocked(module)
    adaptive = "nn.adaptive_avg_pool2d" in operators(changed)
    assert adaptive == (bins == (4, 6))
    same(module, changed, *inputs((1, 12, 6, 6)))


def test_the_maximum_of_an_image() -> None:
    module = graph(lambda x: R.max(R.nn.conv2d(x, weight(12, 12, 1, 1)), [2, 3], keepdims=True), x=("n", 12, 6, 7))
    changed, _ = blocked(module)
    assert operators(changed)[-2:] == ["max_image", "unpack_channels"]
    same(module, changed, *inputs((3, 12, 6, 7)))


@pytest.mark.parametrize(
    ("build", "stays"),
    [
        (lambda q: R.nn.max_pool2d(q, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)), True),
        (lambda q: R.max(q, [2, 3], keepdims=True), False),
    ],
    ids=["windows", "an image"],
)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_maxima_of_bytes(build: Any, stays: bool, dtype: str) -> None:
    """Windows of a blocked image stay blocked; what has no kernel for bytes is given the plain image."""

    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.conv2d(x, weight(20, 12, 1, 1))
        return build(R.quantize(y, relax.const(np.float32(0.1)), relax.const(np.asarray(3, dtype)), 1, dtype))

    module = graph(net, x=(1, 12, 15, 14))
    changed, _ = blocked(module)
    assert ("max_pool2d" in operators(changed)) == stays
    same(module, changed, *inputs((1, 12, 15, 14)))
