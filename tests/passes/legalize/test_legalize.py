"""Legalize: indices stay inside, norms are exact, and what has no kernel is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from relaxc.service.errors import UnsupportedModel
from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import constant
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, compute, graph, random

pytestmark = pytest.mark.sampled

DATA = np.arange(24, dtype="float32").reshape(4, 6)
HUGE = 1 << 40


def inside(index: Any, size: int) -> Any:
    """What an index means: from the end if negative, then clipped."""
    index = np.asarray(index)
    return np.clip(np.where(index < 0, index + size, index), 0, size - 1)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_take_stays_inside(axis: int, dtype: str) -> None:
    indices = np.array([[0, -1, 3], [-4, 2**31 - 1, -(2**31)]], dtype)
    module = graph(lambda x, i: op.take(x, i, axis=axis), x=(4, 6), i=(dtype, (2, 3)))
    want = np.take(DATA, inside(indices.astype("int64"), DATA.shape[axis]), axis=axis)
    np.testing.assert_array_equal(compute(module, DATA, indices)[0], want)


def test_take_without_an_axis_is_of_the_flat_tensor() -> None:
    module = graph(lambda x, i: op.take(x, i), x=(24,), i=("int64", (3,)))
    np.testing.assert_array_equal(compute(module, DATA.reshape(-1), np.array([23, 99, -1]))[0], [23, 23, 23])


def test_take_of_a_symbolic_table() -> None:
    module = graph(lambda x, i: op.take(x, i, axis=0), x=("n", 6), i=("int64", ("m",)))
    np.testing.assert_array_equal(compute(module, DATA, np.array([HUGE, -HUGE]))[0], DATA[[3, 0]])


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_other_modes_are_the_importers(mode: str) -> None:
    module = graph(lambda x, i: op.take(x, i, axis=0, mode=mode), x=(4, 6), i=("int64", (2,)))
    want = np.take(DATA, np.array([5, 1]), axis=0, mode=mode)
    np.testing.assert_array_equal(compute(module, DATA, np.array([5, 1]))[0], want)


def test_gather_elements_stays_inside() -> None:
    indices = np.array([[0, -1, HUGE, -HUGE, 2, 1]])
    module = graph(lambda x, i: op.gather_elements(x, i, axis=0), x=(4, 6), i=("int64", (1, 6)))
    want = np.take_along_axis(DATA, inside(indices, 4), axis=0)
    np.testing.assert_array_equal(compute(module, DATA, indices)[0], want)


def test_gather_nd_stays_inside() -> None:
    indices = np.array([[0, -1], [HUGE, 1], [-1, -HUGE]])
    module = graph(lambda x, i: op.gather_nd(x, i), x=(4, 6), i=("int64", (3, 2)))
    want = DATA[inside(indices[:, 0], 4), inside(indices[:, 1], 6)]
    np.testing.assert_array_equal(compute(module, DATA, indices)[0], want)


def test_gather_nd_with_batch_axes() -> None:
    data, indices = random(2, 3, 4), np.array([[[2], [9]], [[-1], [0]]])
    module = graph(lambda x, i: op.gather_nd(x, i, batch_dims=1), x=(2, 3, 4), i=("int64", (2, 2, 1)))
    want = np.stack([data[b, inside(indices[b, :, 0], 3)] for b in range(2)])
    np.testing.assert_array_equal(compute(module, data, indices)[0], want)


def test_index_tensor_stays_inside() -> None:
    rows, columns = np.array([[0], [-1], [HUGE]]), np.array([5, -HUGE])
    module = graph(lambda x, r, c: op.index_tensor(x, [r, c]), x=(4, 6), r=("int64", (3, 1)), c=("int64", (2,)))
    want = DATA[inside(rows, 4), inside(columns, 6)]
    np.testing.assert_array_equal(compute(module, DATA, rows, columns)[0], want)


def test_scatter_elements_stays_inside() -> None:
    indices = np.array([[0, -1, HUGE, -HUGE, 2, 1]])
    updates = np.full((1, 6), -5, "float32")
    module = graph(lambda x, i, u: op.scatter_elements(x, i, u, axis=0), x=(4, 6), i=("int64", (1, 6)), u=(1, 6))
    want = DATA.copy()
    np.put_along_axis(want, inside(indices, 4), updates, axis=0)
    np.testing.assert_array_equal(compute(module, DATA, indices, updates)[0], want)


def test_scatter_nd_stays_inside() -> None:
    indices, updates = np.array([[1, 2], [HUGE, -HUGE]]), np.float32([-5, -6])
    module = graph(lambda x, i, u: op.scatter_nd(x, i, u), x=(4, 6), i=("int64", (2, 2)), u=(2,))
    want = DATA.copy()
    want[1, 2], want[3, 0] = -5, -6
    np.testing.assert_array_equal(compute(module, DATA, indices, updates)[0], want)


def test_index_put_adds_every_duplicate() -> None:
    count = 4096
    indices, values = np.arange(count) % 3, np.ones(count, "float32")
    module = graph(lambda x, i, v: op.index_put(x, (i,), v, accumulate=True), x=(4,), i=("int64", (count,)), v=(count,))
    got = compute(module, np.zeros(4, "float32"), indices, values)[0]
    np.testing.assert_array_equal(got, [1366, 1365, 1365, 0])


def test_index_put_stays_inside() -> None:
    module = graph(lambda x, i, v: op.index_put(x, (i,), v), x=(4,), i=("int64", (2,)), v=(2,))
    got = compute(module, np.zeros(4, "float32"), np.array([HUGE, -HUGE]), np.float32([1, 2]))[0]
    np.testing.assert_array_equal(got, [2, 0, 0, 1])


def standardize(x: Any, axes: tuple[int, ...]) -> Any:
    x = x.astype("float64")
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


GAMMA, BETA = random(6, seed=1), random(6, seed=2)
OVER = (Ellipsis, None, None)

NORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "layer_norm": (
        lambda x: op.nn.layer_norm(op.permute_dims(x, [0, 2, 3, 1]), constant(GAMMA), constant(BETA), axes=-1),
        lambda x: standardize(x.transpose(0, 2, 3, 1), (-1,)) * GAMMA + BETA,
    ),
    "instance_norm": (
        lambda x: op.nn.instance_norm(x, constant(GAMMA), constant(BETA), channel_axis=1, axes=[2, 3]),
        lambda x: standardize(x, (2, 3)) * GAMMA[OVER] + BETA[OVER],
    ),
    "group_norm": (
        lambda x: op.nn.group_norm(
            x, constant(GAMMA), constant(BETA), num_groups=3, channel_axis=1, axes=[2, 3], epsilon=1e-5
        ),
        lambda x: standardize(x.reshape(2, 3, 2, 4, 5), (2, 3, 4)).reshape(x.shape) * GAMMA[OVER] + BETA[OVER],
    ),
}


@pytest.mark.parametrize("mean", [0.0, 1000.0])
@pytest.mark.parametrize("name", NORMS)
def test_norms_are_exact_far_from_zero(name: str, mean: float) -> None:
    build, reference = NORMS[name]
    x = random(2, 6, 4, 5) * 0.5 + np.float32(mean)
    got = compute(graph(build, x=("n", 6, 4, 5)), x)[0]
    np.testing.assert_allclose(got, reference(x), atol=2e-6 if mean == 0 else 2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_norms_of_other_dtypes(dtype: str) -> None:
    gamma, beta = constant(GAMMA, dtype), constant(BETA, dtype)
    module = graph(lambda x: op.nn.layer_norm(x, gamma, beta, axes=-1), x=(dtype, (3, 6)))
    x = random(3, 6, dtype=dtype)
    got = compute(module, x)[0]
    assert got.dtype == x.dtype
    want = standardize(x.astype("float64"), (-1,)) * GAMMA + BETA
    tolerance = {"float16": 4e-3, "bfloat16": 4e-2, "float64": 1e-7}[dtype]
    np.testing.assert_allclose(got.astype("float64"), want, atol=tolerance)


@pytest.mark.parametrize("axes", [[-1], [1, 2]])
def test_norms_by_the_square_keep_the_digits_of_float64(axes: list[int]) -> None:
    x, gamma = random(2, 3, 6, dtype="float64"), random(*[3, 6][-len(axes) :], dtype="float64")
    module = graph(lambda x: op.nn.rms_norm(x, constant(gamma, "float64"), axes, 0.01), x=("float64", (2, 3, 6)))
    want = x / np.sqrt((x * x).mean(tuple(axes), keepdims=True) + 0.01) * gamma
    np.testing.assert_allclose(compute(module, x)[0], want, rtol=1e-14)


def softmax(x: Any, axis: int) -> Any:
    with np.errstate(invalid="ignore"):
        power = np.exp(x - x.max(axis, keepdims=True))
    return power / power.sum(axis, keepdims=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_softmax(dtype: str, axis: int) -> None:
    module = graph(lambda x: op.nn.softmax(x, axis=axis), x=(dtype, ("n", 7, 5)))
    x = random(3, 7, 5, dtype=dtype)
    got = compute(module, x)[0]
    assert got.dtype == x.dtype
    tolerance = {"float32": 1e-7, "float16": 1e-3, "bfloat16": 4e-3, "float64": 1e-15}[dtype]
    np.testing.assert_allclose(got.astype("float64"), softmax(x.astype("float64"), axis), atol=tolerance)


def test_softmax_of_infinities() -> None:
    """As numpy has it: a row of -inf, or with inf or NaN in it, is NaN; one of large numbers is not."""
    x = np.full((5, 4), -np.inf, "float32")
    x[1, 0], x[2], x[3, 1], x[4] = 2, 3e38, np.inf, [np.nan, 1, 2, 3]
    got = compute(graph(lambda x: op.nn.softmax(x, axis=-1), x=(5, 4)), x)[0]
    np.testing.assert_allclose(got, softmax(x, -1), atol=1e-7)


def test_an_operator_without_a_kernel_is_named() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=2))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.Tuple([builder.emit(op.exp(x))]))
        builder.emit_func_output(output)
    with pytest.raises(UnsupportedModel, match=r"exp \(1\)") as caught:
        optimize(builder.get(), TARGET, CompileOptions())
    assert caught.value.fields["operators"] == {"relax.exp": 1}
