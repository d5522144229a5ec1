"""`--weights` on a module: which constants are rounded, in which layout, and what the report says."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.precision.quantize_weights import QuantizeWeights
from relaxc.service.passes.report import OptimizeReport
from relaxc.service.rounding import digest, rounded
from tests.passes.graphs import assert_unchanged, compute, graph, ops

R = relax.op
RNG = np.random.default_rng(0)
W = RNG.standard_normal((192, 130)).astype("float32")
KNOWN = frozenset({digest(W)})


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_product_has_the_rounded_weights(bits: int, turned: bool) -> None:
    held = np.ascontiguousarray(W.T) if turned else W
    report = OptimizeReport()

    def build(x: relax.Expr) -> relax.Expr:
        weight = R.permute_dims(constant(held), [1, 0]) if turned else constant(held)
        return R.matmul(x, weight)

    made = QuantizeWeights(bits, frozenset({digest(held)}), report)(graph(build, x=(3, 192)))
    assert ops(made) == ["dequantize", "reshape", "permute_dims", "matmul"]
    assert report.rounding is not None
    (row,) = report.rounding.weights
    assert (row.digest, row.shape, row.axis, row.block) == (digest(held), held.shape, int(turned), 64)
    assert 0 < row.error < 0.15 and report.to_dict()["rounding"]["bits"] == bits
    x = RNG.standard_normal((3, 192)).astype("float32")
    want = x @ rounded(W, bits, 0)
    np.testing.assert_allclose(compute(made, x)[0], want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    ("shape", "known"),
    [((192, 130), False), ((16, 16), True), ((130, 192), True)],
    ids=["no tensor of the file", "small", "no whole blocks"],
)
def test_others_are_kept(shape: tuple[int, int], known: bool) -> None:
    array = RNG.standard_normal(shape).astype("float32")
    report = OptimizeReport()
    names = frozenset({digest(array)}) if known else frozenset()
    module = graph(lambda x: R.matmul(x, constant(array)), x=(3, shape[0]))
    assert_unchanged(module, QuantizeWeights(4, names, report))
    assert report.rounding is not None and (report.rounding.weights, report.rounding.kept) == ((), 1)


@pytest.mark.parametrize("turned", [False, True])
def test_a_batch_of_matrices_is_kept_and_said_so(turned: bool) -> None:
    array = RNG.standard_normal((4, 192, 192)).astype("float32")
    report = OptimizeReport()

    def build(x: relax.Expr) -> relax.Expr:
        return R.matmul(x, R.permute_dims(constant(array), [0, 2, 1]) if turned else constant(array))

    assert_unchanged(graph(build, x=(4, 3, 192)), QuantizeWeights(4, frozenset({digest(array)}), report))
    assert report.rounding is not None
    assert (report.rounding.kept, report.rounding.reasons) == (1, (("of 3 axes, where a matrix has two", 1),))


def test_a_weight_that_two_products_read_is_told_of_once() -> None:
    report = OptimizeReport()
    module = graph(lambda x, y: R.add(R.matmul(x, constant(W)), R.matmul(y, constant(W))), x=(3, 192), y=(3, 192))
    assert ops(QuantizeWeights(4, KNOWN, report)(module)).count("dequantize") == 2
    assert report.rounding is not None and len(report.rounding.weights) == 1


def test_a_weight_that_something_else_computes_with_is_kept() -> None:
    """The reference has one tensor: rounded for the product, it would be so for the sum."""
    report = OptimizeReport()
    module = graph(lambda x, y: (R.matmul(x, constant(W)), R.add(y, constant(W))), x=(3, 192), y=(192, 130))
    assert_unchanged(module, QuantizeWeights(4, KNOWN, report))
    assert report.rounding is not None and report.rounding.reasons == (("read in several ways", 1),)


def test_a_matrix_with_an_infinity_is_kept() -> None:
    array = W.copy()
    array[3, 4] = np.inf
    report = OptimizeReport()
    module = graph(lambda x: R.matmul(x, constant(array)), x=(3, 192))
    assert_unchanged(module, QuantizeWeights(8, frozenset({digest(array)}), report))
    assert report.rounding is not None and report.rounding.reasons == (("with values that are not finite", 1),)
