"""What the tests of NHWC share: a graph of 16-bit images before and after the pass, on random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from relaxc.service.passes.layout.images_last import ImagesLast
from relaxc.service.passes.report import OptimizeReport
from tests.passes.graphs import compute, graph, operators, weights

R = relax.op


def conv(x: relax.Expr, filters: int, channels: int, size: int = 3, **geometry: Any) -> relax.Expr:
    """A convolution of 16-bit floats that is summed in fp32."""
    return R.nn.conv2d(x, weights(filters, channels, size, size, dtype="float16"), out_dtype="float32", **geometry)


def low(x: relax.Expr) -> relax.Expr:
    return R.astype(x, "float16")


def changed(module: tvm.IRModule) -> tuple[tvm.IRModule, OptimizeReport]:
    """The module after the pass, and its report."""
    report = OptimizeReport()
    result = ImagesLast(report)(module)
    return relax.transform.CanonicalizeBindings()(result), report


def same(net: Callable[..., relax.Expr], **inputs: tuple[int, ...]) -> list[str]:
    """The operators after the pass, which gives what the graph gave before."""
    module = graph(net, **{name: ("float16", shape) for name, shape in inputs.items()})
    result, report = changed(module)
    assert report.layout.chosen == "NHWC"
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(shape).astype("float16") for shape in inputs.values()]
    for got, want in zip(compute(result, *arrays), compute(module, *arrays), strict=True):
        np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=4e-3, atol=4e-3)
    return operators(result)
