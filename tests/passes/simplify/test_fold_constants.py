"""FoldConstants: numpy's results are TVM's, within bounds of size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.constants import array_of, constant, numpy_dtype
from relaxc.service.passes.simplify.fold_constants import COMPUTE, SMALL_BYTES, FoldConstants
from tests.passes.graphs import TARGET, assert_becomes, assert_unchanged, compute, graph, random

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTS = ("int32", "int64", "int8")


def values(dtype: str, *shape: int, seed: int = 0) -> Any:
    if dtype == "bool":
        return random(*shape, seed=seed) > 0
    if dtype.startswith(("int", "uint")):
        return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)
    return random(*shape, seed=seed, dtype=dtype)


def axis_slice(x: Any) -> Any:
    return op.strided_slice(x, [1, 2], [1, 0], [3, 4], [1, 2])


def dequantized(x: Any) -> Any:
    scales, zeros = constant(np.array([0.1, 0.2, 0.3], "float32")), constant(np.array([5, 0, -9], "int32"))
    return op.dequantize(x, scales, zeros, 1, "float32")


# operator → its dtypes, how many operands, a call of it
CASES: dict[str, tuple[tuple[str, ...], int, Callable[..., Any]]] = {
    "permute_dims": (("float32", "bfloat16", "int8"), 1, lambda x: op.permute_dims(x, [2, 0, 1])),
    "reshape": (("float32", "bool"), 1, lambda x: op.reshape(x, [4, 6])),
    "flatten": (("int64",), 1, op.flatten),
    "expand_dims": (("float32",), 1, lambda x: op.expand_dims(x, [1])),
    "squeeze": (("float32",), 1, lambda x: op.squeeze(op.reshape(x, [2, 1, 12]), [1])),
    "broadcast_to": (("float32", "bfloat16"), 1, lambda x: op.broadcast_to(x, [3, 2, 3, 4])),
    "concat": (("float32", "int32"), 2, lambda x, y: op.concat([x, y], axis=-1)),
    "stack": (("float32",), 2, lambda x, y: op.stack([x, y], axis=1)),
    "strided_slice": (("float32", "bfloat16"), 1, axis_slice),
    "take": (("float32",), 1, lambda x: op.take(x, constant(np.array([[2, 0], [1, 1]])), axis=1)),
    "gather_elements": (
        ("float32", "int64"),
        1,
        lambda x: op.gather_elements(x, constant(np.array([[[2], [0]], [[1], [1]]])), axis=1),
    ),
    "where": (("float32", "bfloat16"), 2, lambda x, y: op.where(op.less(x, y), x, y)),
    "astype": (("int8", "bool", "float16"), 1, lambda x: op.astype(x, "float32")),
    "cumsum": (("int64", "int32"), 1, lambda x: op.cumsum(x, axis=1, dtype="int64")),
    "dequantize": (("int8", "uint8", "int32"), 1, dequantized),
    "arange": (("float32",), 0, lambda: op.arange(2, 11, 3, "float32")),
    "full": (("float32",), 0, lambda: op.full([2, 3], constant(np.float32(1.5)), "float32")),
    "full_like": (("float16",), 1, lambda x: op.full_like(x, constant(np.float16(2)))),
    "zeros": (("int64",), 0, lambda: op.zeros([3], "int64")),
    "zeros_like": (("bfloat16",), 1, op.zeros_like),
    "ones": (("bool",), 0, lambda: op.ones([3], "bool")),
    "ones_like": (("int8",), 1, op.ones_like),
    "shape_to_tensor": (("int64",), 0, lambda: op.shape_to_tensor(relax.ShapeExpr([3, 5]))),
    "add": ((*FLOATS, *INTS), 2, op.add),
    "subtract": ((*FLOATS, *INTS), 2, op.subtract),
    "multiply": ((*FLOATS, *INTS), 2, op.multiply),
    "divide": (FLOATS, 2, op.divide),
    "maximum": (("float32", "float16", "int32"), 2, op.maximum),
    "minimum": (("float32", "float16", "int32"), 2, op.minimum),
    "negative": (("float32", "bfloat16", "int64"), 1, op.negative),
    "mod": (("int64",), 2, lambda x, y: op.mod(x, op.add(y, constant(np.int64(1))))),
    "floor_mod": (("int64",), 2, lambda x, y: op.floor_mod(x, op.add(y, constant(np.int64(1))))),
    "floor_divide": (("int64",), 2, lambda x, y: op.floor_divide(x, op.add(y, constant(np.int64(1))))),
    "sqrt": (("float32",), 1, lambda x: op.sqrt(op.multiply(x, x))),
    "clip": (("float32", "float16"), 1, lambda x: op.clip(x, -0.5, 0.25)),
    **{
        name: ((*FLOATS[:3], "int64"), 2, getattr(op, name))
        for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    },
    **{name: (("bool",), 2, getattr(op, name)) for name in ("logical_and", "logical_or", "logical_xor")},
    "logical_not": (("bool",), 1, op.logical_not),
    **{name: (("int64", "bool"), 2, getattr(op, name)) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "isnan": (("float32",), 1, op.isnan),
}


def test_every_operator_has_a_case() -> None:
    assert CASES.keys() == COMPUTE.keys()


@pytest.mark.sampled(most=37)
@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, case in CASES.items() for dtype in case[0]])
def test_the_folded_value_is_what_tvm_computes(name: str, dtype: str) -> None:
    _, count, call = CASES[name]
    arrays = [values(dtype, 2, 3, 4, seed=i) for i in range(count)]
    folded = FoldConstants()(graph(lambda: call(*map(constant, arrays))))
    folded = relax.transform.CanonicalizeBindings()(folded)
    result = folded["main"].body.blocks[-1].bindings[-1].value.fields[0]
    at_run_time = graph(call, **{f"x{i}": (dtype, array.shape) for i, array in enumerate(arrays)})
    want = compute(at_run_time, *arrays)[0]
    got = array_of(result)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "build",
    [
        lambda: op.full([1024, 1024], constant(np.float32(0)), "float32"),
        lambda: op.broadcast_to(constant(np.ones((1, 1024), "float32")), [1024, 1024]),
        lambda: op.astype(constant(np.zeros((1024, 1024), "int8")), "float32"),
    ],
    ids=["scalar to a tensor", "broadcast", "int8 to float32"],
)
def test_a_much_larger_result_is_not_folded(build: Any) -> None:
    module = graph(lambda x: op.add(x, build()), x=(1024, 1024))
    assert SMALL_BYTES < 1024 * 1024 * 4
    assert_unchanged(module, FoldConstants())


def test_large_weights_are_transformed_and_widened() -> None:
    large = random(1024, 600, dtype="float16")
    given = graph(lambda x: op.matmul(x, op.astype(op.permute_dims(constant(large), [1, 0]), "float32")), x=("n", 600))
    expected = graph(lambda x: op.matmul(x, constant(large.T.astype("float32"))), x=("n", 600))
    assert_becomes(given, FoldConstants(), expected)


@pytest.mark.parametrize("index", [-1, 4])
def test_elements_out_of_bounds_are_left_for_run_time(index: int) -> None:
    table, at = constant(np.arange(4.0, dtype="float32")), constant(np.array([index]))
    assert_unchanged(graph(lambda x: op.add(x, op.gather_elements(table, at, axis=0)), x=(1,)), FoldConstants())


@pytest.mark.parametrize(("mode", "index", "folds"), [("fast", 5, False), ("fast", -1, True), ("clip", -1, False)])
def test_take_out_of_bounds_is_left_for_run_time(mode: str, index: int, folds: bool) -> None:
    table, at = constant(np.arange(4.0, dtype="float32")), constant(np.array([index]))
    given = graph(lambda x: op.add(x, op.take(table, at, axis=0, mode=mode)), x=(1,))
    if folds:
        assert_becomes(given, FoldConstants(), graph(lambda x: op.add(x, constant(np.float32([3]))), x=(1,)))
    else:
        assert_unchanged(given, FoldConstants())


def test_a_cast_of_floats_to_integers_is_left_for_run_time() -> None:
    given = graph(lambda x: op.add(x, op.astype(constant(np.float32([1e30])), "int32")), x=("int32", (1,)))
    assert_unchanged(given, FoldConstants())


def test_negative_integer_division_is_left_for_run_time() -> None:
    minus = constant(np.array([-7]))
    given = graph(lambda x: op.add(x, op.floor_mod(minus, constant(np.array([3])))), x=("int64", (1,)))
    assert_unchanged(given, FoldConstants())


def test_symbolic_results_stay() -> None:
    given = graph(lambda x: op.add(x, op.broadcast_to(constant(np.float32(1)), x.ty.shape)), x=("n",))
    assert_unchanged(given, FoldConstants())


def test_bfloat16_is_numpys() -> None:
    assert numpy_dtype("bfloat16").itemsize == 2
    assert str(TARGET.kind.name) == "llvm"
