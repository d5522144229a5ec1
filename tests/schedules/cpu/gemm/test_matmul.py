"""Matrix products against numpy: edges of the register block, layouts, batches, epilogues, dtypes, symbolic sizes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from relaxc.service.lowering.target import resolve
from tests.schedules.harness import assert_close, run, run_many

pytestmark = pytest.mark.sampled

R = relax.op
AWKWARD = [1, 3, 7, 13, 31, 100]


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.sampled("7", "13")
@pytest.mark.parametrize("m", AWKWARD)
def test_every_edge_of_the_register_block(m):
    for k, n in [(1, 1), (3, 7), (7, 13), (13, 16), (31, 1000), (64, 31), (100, 48), (16, 96), (5, 257)]:
        a, b = normal(m, k), normal(k, n, seed=1)
        ran = run(R.matmul, [a, b])
        assert_close(ran.outputs[0], a @ b)
        assert "cpu.fallback" not in ran.rules, (m, k, n, ran.report)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 5, 7), (2, 7, 9)),
        ((2, 3, 5, 7), (2, 3, 7, 9)),
        ((4, 33, 7), (7, 50)),
        ((3, 1, 5, 7), (1, 2, 7, 9)),
        ((7,), (7, 9)),
        ((5, 7), (7,)),
        ((7,), (7,)),
        ((6, 40, 64), (6, 64, 40)),
        ((1, 12, 128, 64), (1, 12, 64, 128)),
    ],
)
def test_batches_and_vectors(left, right):
    a, b = normal(*left), normal(*right, seed=1)
    assert_close(run(R.matmul, [a, b]).outputs[0], a @ b)


@pytest.mark.parametrize("m", [1, 4, 5, 33])
@pytest.mark.parametrize(("k", "n"), [(64, 32), (129, 50), (7, 300)])
def test_weights_with_contiguous_k(m, k, n):
    a, w = normal(m, k), normal(n, k, seed=1)
    ran = run(lambda x, y: R.matmul(x, R.permute_dims(y)), [a, w], fuse=False)
    assert_close(ran.outputs[0], a @ w.T)
    fused = run(lambda x, y: R.linear(x, y), [a, w])
    assert_close(fused.outputs[0], a @ w.T)


@pytest.mark.parametrize(("m", "n"), [(1, 64), (13, 50), (64, 96)])
def test_epilogues(m, n):
    a, b, bias, residual = normal(m, 37), normal(37, n, seed=1), normal(n, seed=2), normal(m, n, seed=3)
    ran = run(lambda x, y, c, d: R.nn.relu(R.add(R.add(R.matmul(x, y), c), d)), [a, b, bias, residual])
    assert_close(ran.outputs[0], np.maximum(a @ b + bias + residual, 0))
    assert len(ran.report) == 1
    gelu = run(lambda x, y, c: R.nn.gelu(R.add(R.matmul(x, y), c)), [a, b, bias])
    import torch

    assert_close(gelu.outputs[0], torch.nn.functional.gelu(torch.from_numpy(a @ b + bias)).numpy())


def test_a_transposed_result():
    a, b = normal(2, 13, 24), normal(24, 60, seed=1)
    ran = run(lambda x, y: R.permute_dims(R.reshape(R.matmul(x, y), (2, 13, 4, 15)), (0, 2, 1, 3)), [a, b])
    assert_close(ran.outputs[0], (a @ b).reshape(2, 13, 4, 15).transpose(0, 2, 1, 3))


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("shape", [(1, 40, 24), (13, 70, 33), (64, 128, 96)])
def test_dtypes_and_accumulation(dtype, shape):
    m, k, n = shape
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype == "int32":
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-9, 9, s).astype(dtype) for s in ((m, k), (k, n)))
        assert_close(run(R.matmul, [a, b]).outputs[0], a @ b)
        return
    a, b = normal(m, k).astype(numpy_dtype), normal(k, n, seed=1).astype(numpy_dtype)
    want = a.astype("float64") @ b.astype("float64")
    got = run(lambda x, y: R.matmul(x, y, out_dtype="float32" if dtype != "float64" else None), [a, b]).outputs[0]
    assert_close(got, want, 1e-5)
    same = run(R.matmul, [a, b]).outputs[0]
    assert str(same.dtype) == dtype
    assert_close(same, want)


def test_16_bit_sums_are_made_in_fp32():
    a = np.full((2, 4096), 1.0, "float16")
    b = np.full((4096, 16), 1.0, "float16")
    assert (run(R.matmul, [a, b]).outputs[0] == 4096).all()  # in fp16, 2048 + 1 is 2048


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ([("n", 40), (40, 48)], [1, 2, 7, 13, 64]),
        ([("n", 40), (40, 50)], [1, 2, 7, 13, 64]),
        ([(2, "n", 40), (40, 64)], [1, 5, 33]),
        ([("n", 3, 24), ("n", 24, 33)], [1, 2, 5]),
        ([(1, 2, "n", 16), (1, 2, 16, "n")], [1, 3, 17, 64]),
        ([(1, 2, "n", "n"), (1, 2, "n", 16)], [1, 3, 17, 64]),
        ([("n", 8), (8, "n")], [1, 2, 31, 100]),
    ],
)
def test_symbolic_sizes(shapes, sizes):
    calls = []
    for size in sizes:
        real = [[size if d == "n" else d for d in shape] for shape in shapes]
        calls.append([normal(*real[0]), normal(*real[1], seed=1)])
    for (a, b), ran in zip(calls, run_many(R.matmul, calls, shapes=shapes), strict=True):
        assert_close(ran.outputs[0], a @ b)
        assert ran.rules == ["cpu.matmul"]
        assert isinstance(ran.report[0]["flops"], str) and "n" in ran.report[0]["flops"]


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_other_vector_widths(target):
    a, b = normal(29, 50), normal(50, 70, seed=1)
    assert_close(run(R.matmul, [a, b], spec=resolve(target)).outputs[0], a @ b)


def test_infinities_and_nan_go_through():
    a, b = normal(5, 20), normal(20, 37, seed=1)
    a[1, 3], a[2, 4], b[7, 5] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        assert_close(run(R.matmul, [a, b]).outputs[0], a @ b)
