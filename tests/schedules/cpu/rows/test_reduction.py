"""Row-wise functions, reductions over any axes and pooling, against numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tvm import relax

from relaxc.service.lowering.target import resolve
from tests.schedules.harness import assert_close, run, run_many

pytestmark = pytest.mark.sampled

R = relax.op
F = torch.nn.functional
SHAPES = [(1, 1), (1, 1000), (3, 7), (31, 13), (7, 31), (2, 3, 17), (128, 768), (5, 33), (4, 12, 16, 49)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x)


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows(shape):
    x, scale, shift = normal(*shape), normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    ran = run(lambda a: R.nn.softmax(a, -1), [x])
    assert_close(ran.outputs[0], F.softmax(tensor(x), -1).numpy())
    assert ran.rules == ["cpu.rows"], ran.report
    ran = run(lambda a, b, c: R.nn.layer_norm(a, b, c, -1), [x, scale, shift])
    assert_close(ran.outputs[0], F.layer_norm(tensor(x), shape[-1:], tensor(scale), tensor(shift)).numpy(), 1e-4)
    assert "cpu.fallback" not in ran.rules, ran.report
    ran = run(lambda a, b: R.nn.rms_norm(a, b, -1, 1e-6), [x, scale])
    assert_close(ran.outputs[0], F.rms_norm(tensor(x), shape[-1:], tensor(scale), 1e-6).numpy())
    ran = run(lambda a: R.nn.log_softmax(a, -1), [x])
    assert_close(ran.outputs[0], F.log_softmax(tensor(x), -1).numpy())


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 7, 33), (1, 64, 16), (40, 2, 5)])
def test_softmax_over_any_axis(shape, axis):
    x = normal(*shape)
    assert_close(run(lambda a: R.nn.softmax(a, axis), [x]).outputs[0], F.softmax(tensor(x), axis).numpy())


@pytest.mark.sampled("True-axes3", "False-axes6", "False-axes4")
@pytest.mark.parametrize("axes", [[0], [1], [2], [3], [2, 3], [0, 2], [1, 3], [0, 1, 2, 3], [1, 2, 3]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_over_any_axes(axes, keepdims):
    x = normal(3, 8, 7, 37)
    for op, reference in ((R.sum, np.sum), (R.max, np.max), (R.min, np.min), (R.mean, np.mean), (R.variance, np.var)):
        ran = run(lambda a, op=op: op(a, axes, keepdims), [x])
        want = reference(x.astype("float64"), axis=tuple(axes), keepdims=keepdims).astype("float32")
        assert_close(ran.outputs[0], want, 1e-4)
    product = run(lambda a: R.prod(a, axes, keepdims), [np.abs(x) ** 0.01]).outputs[0]
    assert_close(product, np.prod(np.abs(x) ** 0.01, axis=tuple(axes), keepdims=keepdims), 1e-4)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
@pytest.mark.parametrize("axes", [[0], [1]])
def test_dtypes(dtype, axes):
    x = (100 * normal(37, 41)).astype(dtype)
    assert_close(run(lambda a: R.sum(a, axes), [x]).outputs[0], x.sum(tuple(axes)).astype(dtype))
    assert_close(run(lambda a: R.max(a, axes), [x]).outputs[0], x.max(tuple(axes)))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [1, 16, 100])
def test_argmax(size, axis):
    x = normal(13, size)
    assert_close(run(lambda a: R.argmax(a, axis), [x]).outputs[0], x.argmax(axis))
    assert_close(run(lambda a: R.argmin(a, axis), [x]).outputs[0], x.argmin(axis))


@pytest.mark.sampled("(1, 16, 112, 112)")
@pytest.mark.parametrize("size", [(1, 3, 14, 14), (2, 5, 13, 7), (1, 16, 112, 112)], ids=str)
def test_pooling(size):
    x = normal(*size)
    for kernel, stride, padding in ((3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2)):
        got = run(lambda a, k=kernel, s=stride, p=padding: R.nn.max_pool2d(a, (k, k), (s, s), (p, p)), [x]).outputs[0]
        assert_close(got, F.max_pool2d(tensor(x), kernel, stride, padding).numpy())
        got = run(lambda a, k=kernel, s=stride, p=padding: R.nn.avg_pool2d(a, (k, k), (s, s), (p, p)), [x]).outputs[0]
        assert_close(got, F.avg_pool2d(tensor(x), kernel, stride, padding, count_include_pad=False).numpy())
    assert_close(run(lambda a: R.nn.adaptive_avg_pool2d(a, (1, 1)), [x]).outputs[0], x.mean((2, 3), keepdims=True))
    got = run(lambda a: R.nn.adaptive_avg_pool2d(a, (3, 2)), [x]).outputs[0]
    assert_close(got, F.adaptive_avg_pool2d(tensor(x), (3, 2)).numpy())


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_group_norm(groups):
    x, scale, shift = normal(2, 8, 5, 7), normal(8, seed=1), normal(8, seed=2)
    ran = run(lambda a, b, c: R.nn.group_norm(a, b, c, groups, 1, [2, 3]), [x, scale, shift])
    assert_close(ran.outputs[0], F.group_norm(tensor(x), groups, tensor(scale), tensor(shift)).numpy(), 1e-4)


def test_an_elementwise_stage_before_and_behind():
    x, y = normal(6, 70), normal(6, 70, seed=1)
    ran = run(lambda a, b: R.multiply(R.nn.softmax(R.add(a, b), -1), b), [x, y])
    assert_close(ran.outputs[0], F.softmax(tensor(x + y), -1).numpy() * y)


@pytest.mark.parametrize(
    ("build", "reference"),
    [
        (lambda a: R.nn.softmax(a, -1), lambda x: F.softmax(tensor(x), -1).numpy()),
        (lambda a: R.nn.softmax(a, 1), lambda x: F.softmax(tensor(x), 1).numpy()),
        (lambda a: R.sum(a, [-1]), lambda x: x.sum(-1)),
        (lambda a: R.mean(a, [1]), lambda x: x.mean(1)),
        (lambda a: R.max(a), lambda x: x.max()),
    ],
)
def test_symbolic_sizes(build, reference):
    calls = [[normal(*shape)] for shape in ((1, 1, 1), (2, 3, 5), (1, 17, 33), (4, 2, 100))]
    for (x,), ran in zip(calls, run_many(build, calls, shapes=[("a", "b", "c")]), strict=True):
        assert_close(ran.outputs[0], reference(x), 1e-4)


def test_infinities_and_nan():
    x = normal(4, 50)
    x[0, 3], x[1, :], x[2, 7], x[3, 1] = np.inf, -np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        assert_close(run(lambda a: R.nn.softmax(a, -1), [x]).outputs[0], F.softmax(tensor(x), -1).numpy())
        assert_close(run(lambda a: R.sum(a, [-1]), [x]).outputs[0], x.sum(-1))


@pytest.mark.sampled(most=6)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("shape", [(3, 7, 33), (2, 40, 3), (2, 3, 64), (1, 2, 1000), (1, 1, 5)], ids=str)
def test_the_largest_and_the_smallest_are_nan_where_one_is(shape, axes, dtype):
    for place in (0, 1, -1, normal(*shape).size // 2):
        x = normal(*shape).astype(dtype)
        x.reshape(-1)[place] = np.nan
        for op, reference in ((R.max, np.max), (R.min, np.min)):
            got = run(lambda a, op=op: op(a, axes), [x]).outputs[0]
            np.testing.assert_array_equal(got, reference(x, tuple(axes)))


def test_rows_beyond_the_cache_are_fetched_ahead():
    x, scale, shift = normal(1100, 1003), normal(1003, seed=1), normal(1003, seed=2)
    spec = resolve('{"kind": "llvm", "mcpu": "x86-64-v3", "cores": 2}')  # more cores have more cache
    ran = run(lambda a: R.nn.softmax(a, -1), [x], spec=spec)
    assert "llvm.prefetch" in ran.module.script() and ran.rules == ["cpu.rows"]
    assert_close(ran.outputs[0], F.softmax(tensor(x), -1).numpy())
    ran = run(lambda a, b, c: R.nn.layer_norm(a, b, c, -1), [x, scale, shift], spec=spec)
    assert_close(ran.outputs[0], F.layer_norm(tensor(x), (1003,), tensor(scale), tensor(shift)).numpy(), 1e-4)
    assert_close(run(lambda a: R.max(a, [-1]), [x], spec=spec).outputs[0], x.max(-1))
    small = run(lambda a: R.nn.softmax(a, -1), [x[:8].copy()], spec=spec)
    assert "llvm.prefetch" not in small.module.script()


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("length", [1 << 18, (1 << 17) + 12345])
def test_a_long_sum_is_made_of_sums_of_blocks(target, length):
    x = normal(1, length) + np.float32(50)
    spec = resolve(f'{{"kind": "llvm", "mcpu": "{target}", "cores": 2}}')
    ran = run(
        lambda a, b, c: R.nn.layer_norm(a, b, c, -1), [x, np.ones(length, "f4"), np.zeros(length, "f4")], spec=spec
    )
    assert ran.rules == ["cpu.rows"]
    wide = x.astype("float64")
    want = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    assert np.abs(ran.outputs[0] - want).max() < 2e-5


@pytest.mark.parametrize("depth", [8, 12, 16, 32])
def test_a_sum_of_few_products_of_bytes(depth):
    """LLVM has an instruction for four of them."""
    draw = np.random.default_rng(0)
    a, b = draw.integers(0, 256, (5, depth), "uint8"), draw.integers(-128, 128, (depth, 1), "int8")
    ran = run(lambda a, b: R.matmul(a, b, out_dtype="int32"), [a, b])
    assert ran.rules == ["cpu.rows"], ran.report
    np.testing.assert_array_equal(ran.outputs[0], a.astype("int32") @ b.astype("int32"))
