"""Elementwise functions and data movement against numpy: broadcasts, layouts, tails, conditions, symbolic sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from relaxc.service import compiler
from relaxc.service.lowering.target import resolve
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write
from tests.schedules.harness import assert_close, run, run_many

pytestmark = pytest.mark.sampled

R = relax.op
SHAPES = [(), (1,), (3,), (7, 1), (1, 1000), (13, 31), (2, 3, 5, 7), (1, 64, 33, 33), (300, 70)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elementwise(shape):
    x, y = normal(*shape), normal(*shape, seed=1)
    ran = run(lambda a, b: R.nn.relu(R.add(R.multiply(a, b), a)), [x, y])
    assert_close(ran.outputs[0], np.maximum(x * y + x, 0))
    assert ran.rules == ["cpu.injective"]
    assert_close(run(lambda a: R.sigmoid(R.tanh(a)), [x]).outputs[0], 1 / (1 + np.exp(-np.tanh(x))))
    assert_close(run(lambda a: R.greater(a, relax.const(0.0)), [x]).outputs[0], x > 0)
    assert_close(run(lambda a: R.astype(a, "int64"), [100 * x]).outputs[0], (100 * x).astype("int64"))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((5, 7), (7,)),
        ((5, 7), (5, 1)),
        ((2, 3, 33), (3, 1)),
        ((4, 1, 6), (5, 1)),
        ((64, 100), (1, 1)),
        ((3, 16, 16), (16,)),
    ],
)
def test_broadcasts(left, right):
    x, y = normal(*left), normal(*right, seed=1)
    assert_close(run(R.add, [x, y]).outputs[0], x + y)
    assert_close(run(lambda a, b: R.where(R.less(a, b), a, b), [x, y]).outputs[0], np.minimum(x, y))


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1)])
@pytest.mark.parametrize("shape", [(3, 5, 7), (16, 33, 64), (1, 128, 12)])
def test_transpositions(axes, shape):
    x = normal(*shape)
    assert_close(run(lambda a: R.permute_dims(a, axes), [x]).outputs[0], x.transpose(axes))
    size = int(np.prod(shape))
    fused = run(lambda a: R.reshape(R.permute_dims(R.add(a, a), axes), (size,)), [x])
    assert_close(fused.outputs[0], (x + x).transpose(axes).reshape(-1))


def test_data_movement():
    x, y = normal(3, 5, 33), normal(3, 4, 33, seed=1)
    assert_close(run(lambda a, b: R.concat([a, b], 1), [x, y]).outputs[0], np.concatenate([x, y], 1))
    z = normal(3, 5, 6, seed=2)
    assert_close(run(lambda a, b: R.concat([a, b], 2), [x, z]).outputs[0], np.concatenate([x, z], 2))
    assert_close(
        run(lambda a: R.strided_slice(a, [1, 2], [1, 2], [5, 30], [2, 3]), [x]).outputs[0], x[:, 1:5:2, 2:30:3]
    )
    assert_close(run(lambda a: R.flip(a, 2), [x]).outputs[0], x[:, :, ::-1])
    assert_close(run(lambda a: R.tile(a, (2, 1, 3)), [x]).outputs[0], np.tile(x, (2, 1, 3)))
    padded = run(lambda a: R.nn.pad(a, (0, 0, 1, 2, 3, 0)), [x]).outputs[0]
    assert_close(padded, np.pad(x, ((0, 0), (1, 2), (3, 0))))
    indices = np.array([[4, 0], [2, 2]])
    assert_close(run(lambda a, i: R.take(a, i, 1, "clip"), [x, indices]).outputs[0], x[:, indices])
    parts = run(lambda a: R.split(a, [1, 3], 1), [x]).outputs
    for got, want in zip(parts, np.split(x, [1, 3], 1), strict=True):
        assert_close(got, want)


def test_a_long_chain_does_not_explode():
    x = normal(4, 40)

    def build(a):
        for _ in range(24):
            a = R.subtract(R.tanh(R.multiply(a, a)), R.multiply(R.tanh(a), a))
        return a

    ran = run(build, [x])
    want = x
    for _ in range(24):
        want = np.tanh(want * want) - np.tanh(want) * want
    assert ran.rules and ran.outputs[0].shape == want.shape
    np.testing.assert_allclose(ran.outputs[0], want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("build", "reference"),
    [
        (lambda a: R.nn.relu(R.add(a, a)), lambda x: np.maximum(x + x, 0)),
        (lambda a: R.permute_dims(a, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
        (lambda a: R.concat([a, R.negative(a)], 2), lambda x: np.concatenate([x, -x], 2)),
        (lambda a: R.concat([a, R.negative(a)], 0), lambda x: np.concatenate([x, -x], 0)),
        (lambda a: R.nn.pad(a, (0, 0, 0, 0, 1, 2)), lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2)))),
    ],
)
def test_symbolic_sizes(build, reference):
    calls = [[normal(*shape)] for shape in ((1, 1, 1), (2, 3, 5), (1, 17, 33), (40, 2, 100))]
    for (x,), ran in zip(calls, run_many(build, calls, shapes=[("a", "b", "c")]), strict=True):
        assert_close(ran.outputs[0], reference(x))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float64", "float16"])
def test_dtypes(dtype):
    x = (10 * np.abs(normal(5, 77))).astype(dtype)
    assert_close(run(lambda a: R.concat([a, a], 1), [x]).outputs[0], np.concatenate([x, x], 1))
    if dtype not in ("bool", "float16"):
        assert_close(run(lambda a: R.add(a, a), [x]).outputs[0], x + x)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_other_vector_widths(target):
    x = normal(33, 77)
    assert_close(run(lambda a: R.exp(R.nn.relu(a)), [x], spec=resolve(target)).outputs[0], np.exp(np.maximum(x, 0)))


def test_a_transposition_of_a_size_less_a_number(tmp_path: Path) -> None:
    """TVM fuses no loops of which it takes `8 (n - 2)` for no multiple of `n - 2`."""
    nodes = [node("MaxPool", ["x"], ["h"], kernel_shape=[3, 1]), node("Transpose", ["h"], ["y"], perm=[0, 2, 3, 1])]
    made = model(nodes, [value("x", ["b", 128, "n", 16])], [value("y", ["b", "m", 16, 128])])
    compiler.run(compiler.prepare(write(tmp_path, made), target="x86-64-v3"), tmp_path, lambda event: None)
    x = normal(2, 128, 9, 16)
    want = np.lib.stride_tricks.sliding_window_view(x, 3, axis=2).max(axis=-1).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(load(tmp_path / "model.so")(x=x)["y"], want)
