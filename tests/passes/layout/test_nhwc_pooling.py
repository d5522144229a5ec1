"""Pooling and means stay in NHWC."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.passes.graphs import weights
from tests.passes.layout.nhwc import conv, low, same

R = relax.op


def test_depthwise_and_pooling() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = low(R.nn.conv2d(x, weights(16, 1, 3, 3, dtype="float16"), groups=16, padding=1, out_dtype="float32"))
        y = R.nn.max_pool2d(y, (3, 2), (2, 1), (1, 0))
        mean = R.nn.avg_pool2d(R.astype(y, "float32"), 3, 1, 1, count_include_pad=False)
        whole = R.nn.adaptive_avg_pool2d(R.astype(y, "float32"), 1)
        gate = R.sigmoid(R.mean(R.astype(y, "float32"), [2, 3], keepdims=True))
        return R.add(R.multiply(mean, gate), whole)

    assert "permute_dims" in same(net, x=(2, 16, 9, 8))


@pytest.mark.slow
def test_means_without_their_dims_concatenation_and_results() -> None:
    def net(x: relax.Expr) -> tuple[relax.Expr, ...]:
        y = low(R.nn.silu(conv(x, 8, 8, 1)))
        both = R.concat([y, x], axis=1)
        return R.mean(R.astype(y, "float32"), [2, 3]), R.flatten(R.nn.adaptive_avg_pool2d(y, 1)), conv(both, 8, 16, 1)

    same(net, x=(2, 8, 5, 4))
