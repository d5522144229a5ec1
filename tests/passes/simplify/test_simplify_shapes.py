"""SimplifyShapes and SimplifySizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.simplify.simplify_shapes import SimplifyShapes
from relaxc.service.passes.simplify.simplify_sizes import SimplifySizes
from tests.passes.graphs import assert_becomes, assert_unchanged, compute, graph, ops, random

REWRITTEN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "expand_dims": (lambda x: op.expand_dims(x, [1]), lambda x: op.reshape(x, [2, 1, 3, 4])),
    "squeeze of expand_dims": (lambda x: op.exp(op.squeeze(op.expand_dims(x, [0]), [0])), op.exp),
    "flatten": (op.flatten, lambda x: op.reshape(x, [24])),
    "reshape of reshape": (lambda x: op.reshape(op.reshape(x, [6, 4]), [3, 8]), lambda x: op.reshape(x, [3, 8])),
    "reshape to itself": (lambda x: op.exp(op.reshape(x, [2, 3, 4])), op.exp),
    "transpose of transpose": (
        lambda x: op.permute_dims(op.permute_dims(x, [2, 0, 1]), [1, 0, 2]),
        lambda x: op.permute_dims(x, [0, 2, 1]),
    ),
    "transposes that undo each other": (
        lambda x: op.exp(op.permute_dims(op.permute_dims(x, [2, 0, 1]), [1, 2, 0])),
        op.exp,
    ),
    "default transpose": (lambda x: op.exp(op.permute_dims(op.permute_dims(x))), op.exp),
    "transpose of ones": (
        lambda x: op.permute_dims(op.reshape(x, [1, 6, 1, 4]), [1, 2, 0, 3]),
        lambda x: op.reshape(x, [6, 1, 1, 4]),
    ),
    "a transpose meets the one above a reshape": (
        lambda x: op.permute_dims(op.reshape(op.permute_dims(x, [0, 2, 1]), [2, 1, 4, 3]), [0, 1, 3, 2]),
        lambda x: op.reshape(x, [2, 1, 3, 4]),
    ),
    "slice of all": (lambda x: op.exp(op.strided_slice(x, [1], [0], [3], [1])), op.exp),
    "broadcast to itself": (lambda x: op.exp(op.broadcast_to(x, [2, 3, 4])), op.exp),
    "shape of a tensor": (
        lambda x: op.shape_to_tensor(op.shape_of(x)),
        lambda x: op.shape_to_tensor(relax.ShapeExpr([2, 3, 4])),
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, after = REWRITTEN[name]
    given, expected = graph(before, x=(2, 3, 4)), graph(after, x=(2, 3, 4))
    assert_becomes(given, SimplifyShapes(), expected)
    x = random(2, 3, 4)
    np.testing.assert_allclose(compute(given, x)[0], compute(expected, x)[0], rtol=1e-6)


def test_symbolic_reshapes_that_undo_each_other() -> None:
    def net(x: Any) -> Any:
        batch, rows = x.ty.shape[0], x.ty.shape[1]
        return op.exp(op.reshape(op.reshape(x, [batch * rows, 4]), [batch, rows, 4]))

    assert_becomes(graph(net, x=("b", "s", 4)), SimplifyShapes(), graph(op.exp, x=("b", "s", 4)))


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.permute_dims(x, [0, 2, 1]),
        lambda x: op.permute_dims(op.reshape(x, [6, 4]), [1, 0]),
        lambda x: op.strided_slice(x, [1], [0], [3], [2]),
        lambda x: op.strided_slice(x, [1], [2], [-4], [-1]),
    ],
)
def test_what_moves_data_stays(build: Any) -> None:
    assert_unchanged(graph(build, x=(2, 3, 4)), SimplifyShapes())


def bounded(module: tvm.IRModule, **bounds: tuple[int, int]) -> tvm.IRModule:
    main = module["main"]
    main = main.with_attr("tir_var_lower_bound", {name: low for name, (low, _) in bounds.items()})
    main = main.with_attr("tir_var_upper_bound", {name: high for name, (_, high) in bounds.items()})
    module.update_func(module.get_global_var("main"), main)
    return module


def positions(x: Any) -> Any:
    """The rows of a table for as many tokens as there are, as an exporter slices it."""
    table = constant(np.zeros((1, 16, 4), "float32"))
    return op.add(x, op.strided_slice(table, [1], [0], [x.ty.shape[1]], [1]))


def test_a_slice_within_its_bounds_has_a_plain_shape() -> None:
    given = bounded(graph(positions, x=(2, "s", 4)), s=(1, 16))
    assert str(given["main"].ret_ty.fields[0].shape) == "None"
    got = SimplifySizes()(given)["main"].ret_ty.fields[0]
    assert [getattr(size, "value", None) or size.name for size in got.shape] == [2, "s", 4]


def test_a_slice_that_may_be_too_long_stays() -> None:
    given = bounded(graph(positions, x=(2, "s", 4)), s=(1, 17))
    got = SimplifySizes()(given)["main"].ret_ty.fields[0]
    assert got.shape is None


def test_an_end_at_infinity_is_the_size() -> None:
    given = graph(lambda x: op.strided_slice(x, [-1], [1], [(1 << 63) - 1], [1]), x=("n", 4))
    expected = graph(lambda x: op.strided_slice(x, [1], [1], [4], [1], assume_inbound=True), x=("n", 4))
    assert_becomes(given, SimplifySizes(), expected)


def test_steps_backward_stay() -> None:
    given = graph(lambda x: op.strided_slice(x, [1], [3], [0], [-1]), x=("n", 4))
    assert ops(SimplifySizes()(given)) == ["strided_slice"]
    assert_unchanged(given, SimplifySizes())
