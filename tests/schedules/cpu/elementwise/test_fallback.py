"""What no template takes is right all the same: scans, sorts, scatters, tuple reductions, one result of two stages."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.harness import assert_close, run, run_many

R = relax.op


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scans(axis):
    x = normal(3, 17, 5)
    assert_close(run(lambda a: R.cumsum(a, axis), [x]).outputs[0], x.cumsum(axis))
    assert_close(run(lambda a: R.cumprod(a, axis), [x]).outputs[0], x.cumprod(axis))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_sorts(size):
    x = normal(5, size)
    assert_close(run(lambda a: R.sort(a, -1), [x]).outputs[0], np.sort(x, -1))
    assert_close(run(lambda a: R.argsort(a, -1, dtype="int64"), [x]).outputs[0], np.argsort(x, -1))
    values, indices = run(lambda a: R.topk(a, 1, -1, dtype="int64"), [x]).outputs
    assert_close(values, x.max(-1, keepdims=True))
    assert_close(indices, x.argmax(-1)[:, None])


def test_scatters():
    x, updates = normal(6, 9), normal(3, 9, seed=1)
    indices = np.stack([np.random.default_rng(2).permutation(6)[:3] for _ in range(9)], 1).astype("int64")
    want = x.copy()
    np.put_along_axis(want, indices, updates, 0)
    assert_close(run(lambda a, i, u: R.scatter_elements(a, i, u, 0), [x, indices, updates]).outputs[0], want)
    added = x.copy()
    same = np.zeros((3, 9), "int64")
    np.add.at(added, (same, np.arange(9)[None, :]), updates)
    got = run(lambda a, i, u: R.scatter_elements(a, i, u, 0, "add"), [x, same, updates]).outputs[0]
    assert_close(got, added)
    places = np.array([[1], [4]])
    want = x.copy()
    want[[1, 4]] = updates[:2]
    assert_close(run(lambda a, i, u: R.scatter_nd(a, i, u), [x, places, updates[:2]]).outputs[0], want)


def test_gathers():
    x = normal(6, 9)
    indices = np.random.default_rng(2).integers(0, 6, (4, 9))
    assert_close(
        run(lambda a, i: R.gather_elements(a, i, 0), [x, indices]).outputs[0], np.take_along_axis(x, indices, 0)
    )
    places = np.array([[1, 2], [5, 8]])
    assert_close(run(lambda a, i: R.gather_nd(a, i), [x, places]).outputs[0], x[[1, 5], [2, 8]])


def test_a_stage_that_is_a_result_and_an_operand():
    x, w = normal(5, 20), normal(20, 33, seed=1)

    def build(a, b):
        y = R.matmul(a, b)
        return relax.Tuple([y, R.nn.relu(y)])

    ran = run(build, [x, w])
    assert_close(ran.outputs[0], x @ w)
    assert_close(ran.outputs[1], np.maximum(x @ w, 0))


@pytest.mark.parametrize("op", ["sum", "max"])
def test_opt_level_0_asks_the_fallback_only(op):
    x, w = normal(5, 20), normal(20, 33, seed=1)
    ran = run(R.matmul, [x, w], opt_level=0)
    assert ran.rules == ["cpu.fallback"]
    assert_close(ran.outputs[0], x @ w)
    ran = run(lambda a: getattr(R, op)(R.exp(a), [1]), [x], opt_level=0)
    assert_close(ran.outputs[0], getattr(np, op)(np.exp(x), axis=1))
    ran = run(lambda a: R.nn.softmax(a, 1), [x], opt_level=0)
    assert ran.rules == ["cpu.fallback"]
    assert_close(ran.outputs[0].sum(1), np.ones(5))


def test_symbolic_scan_and_softmax_of_the_middle():
    calls = [[normal(*shape)] for shape in ((1, 1, 1), (2, 3, 5), (3, 17, 40))]
    for (x,), ran in zip(calls, run_many(lambda a: R.cumsum(a, 1), calls, shapes=[("a", "b", "c")]), strict=True):
        assert_close(ran.outputs[0], x.cumsum(1))


def test_zero_size():
    x = np.zeros((0, 7), "float32")
    assert run(lambda a: R.nn.relu(a), [x]).outputs[0].shape == (0, 7)
    assert_close(run(lambda a: R.sum(a, [0]), [x]).outputs[0], np.zeros(7))
    assert_close(run(lambda a: R.sum(a, [1]), [np.zeros((3, 0), "float32")]).outputs[0], np.zeros(3))
    assert run(lambda a: R.nn.softmax(a, -1), [np.zeros((3, 0), "float32")]).outputs[0].shape == (3, 0)
    assert run(lambda a: R.permute_dims(a), [x]).outputs[0].shape == (7, 0)
    assert_close(run(R.matmul, [np.zeros((3, 0), "float32"), np.zeros((0, 5), "float32")]).outputs[0], np.zeros((3, 5)))
