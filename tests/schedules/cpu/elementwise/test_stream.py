"""Loops over memory: axes split and coalesced, vectors and squares that overlap, against numpy over awkward shapes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tvm import relax, te

from relaxc.schedules.cpu.elementwise.stream import stream_program
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir import analysis
from relaxc.schedules.ir.strides import strided
from relaxc.schedules.ir.transpose_code import transpose_code
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.harness import assert_close, run

pytestmark = pytest.mark.sampled

R = relax.op
SIZES = (1, 3, 7, 13, 16, 31)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), "float32")


def program(name: str, shapes: list[tuple], compute) -> str | None:
    """The script of the program of a PrimFunc, or None where it has none."""
    tensors = [te.placeholder(shape, "float32", name=f"x{i}") for i, shape in enumerate(shapes)]
    func = te.create_prim_func([*tensors, compute(*tensors)])
    made = stream_program(func, cpu_of(to_tvm(resolve(name))))
    return None if made is None else made.script(show_meta=False)


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("seed", range(6))
def test_permutations(axes, seed):
    shape = tuple(np.random.default_rng(seed).permutation([*SIZES, 1000, 64])[:3].tolist())
    if np.prod(shape) > 1 << 19:
        shape = (*shape[:2], 17)
    x = normal(*shape)
    y = normal(*np.transpose(x, axes).shape, seed=1)
    ran = run(lambda a: R.permute_dims(a, axes), [x])
    np.testing.assert_array_equal(ran.outputs[0], x.transpose(axes))
    ran = run(lambda a, b: R.nn.relu(R.add(R.permute_dims(a, axes), b)), [x, y])
    np.testing.assert_array_equal(ran.outputs[0], np.maximum(x.transpose(axes) + y, 0))


@pytest.mark.parametrize("dtype", ["int8", "float16", "int32", "float64", "bool"])
def test_dtypes(dtype):
    x = (10 * normal(70, 45)).astype(dtype)
    np.testing.assert_array_equal(run(lambda a: R.permute_dims(a), [x]).outputs[0], x.T)
    wide = run(lambda a: R.astype(R.permute_dims(a), "float32"), [x]).outputs[0]
    np.testing.assert_array_equal(wide, x.T.astype("float32"))


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "auto"])
def test_every_vector_length(name):
    x, y = normal(37, 50), normal(50, 37, seed=1)
    ran = run(lambda a, b: R.add(R.permute_dims(a), b), [x, y], spec=resolve(name))
    np.testing.assert_array_equal(ran.outputs[0], x.T + y)


@pytest.mark.parametrize("shape", [(1, 5, 12, 64), (2, 31, 3, 7), (1, 64, 2, 40)])
def test_heads(shape):
    """What surrounds attention, where one axis of the result is two of the operand, or the other way round."""
    b, s, h, d = shape
    x = normal(b, s, h * d)
    split = run(lambda a: R.permute_dims(R.reshape(a, shape), [0, 2, 1, 3]), [x]).outputs[0]
    np.testing.assert_array_equal(split, x.reshape(shape).transpose(0, 2, 1, 3))
    keys = run(lambda a: R.permute_dims(R.reshape(a, shape), [0, 2, 3, 1]), [x]).outputs[0]
    np.testing.assert_array_equal(keys, x.reshape(shape).transpose(0, 2, 3, 1))
    y = normal(b, h, s, d)
    merged = run(lambda a: R.reshape(R.permute_dims(a, [0, 2, 1, 3]), [b, s, h * d]), [y]).outputs[0]
    np.testing.assert_array_equal(merged, y.transpose(0, 2, 1, 3).reshape(b, s, h * d))


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("size", [(5, 7), (14, 20), (3, 1)])
def test_channel_blocks(lanes, size):
    h, w = size
    x = normal(2, 3 * lanes, h, w)
    blocked = x.reshape(2, 3, lanes, h, w).transpose(0, 1, 3, 4, 2)
    pack = run(lambda a: R.permute_dims(R.reshape(a, [2, 3, lanes, h, w]), [0, 1, 3, 4, 2]), [x]).outputs[0]
    np.testing.assert_array_equal(pack, blocked)
    unpack = run(
        lambda a: R.reshape(R.permute_dims(a, [0, 1, 4, 2, 3]), x.shape), [np.ascontiguousarray(blocked)]
    ).outputs[0]
    np.testing.assert_array_equal(unpack, x)


def test_pixel_shuffle_slices_and_rolls():
    x = normal(1, 8, 9, 20)
    shuffled = run(
        lambda a: R.reshape(R.permute_dims(R.reshape(a, [1, 2, 2, 2, 9, 20]), [0, 1, 4, 2, 5, 3]), [1, 2, 18, 40]), [x]
    ).outputs[0]
    np.testing.assert_array_equal(
        shuffled, x.reshape(1, 2, 2, 2, 9, 20).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 18, 40)
    )
    sliced = run(lambda a: R.strided_slice(a, [1, 3], [1, 2], [8, 19], [2, 3]), [x]).outputs[0]
    np.testing.assert_array_equal(sliced, x[:, 1:8:2, :, 2:19:3])
    np.testing.assert_array_equal(run(lambda a: R.flip(a, 3), [x]).outputs[0], np.flip(x, 3))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("width", [1, 17, 40])
def test_concatenations(axis, width):
    parts = [normal(*(n if i == axis else s for i, s in enumerate((4, 6, width)))) for n in (3, 1, 8)]
    got = run(lambda *xs: R.concat(list(xs), axis), parts).outputs[0]
    np.testing.assert_array_equal(got, np.concatenate(parts, axis))


def test_a_square_is_not_read_where_a_condition_does_not_hold() -> None:
    """Concatenated channels in blocks: of two inputs, one does not have the element."""
    shape = (2, 32, 16, 16)

    def blocked(a, b):
        def element(n, c, h, w, v):
            channel = c * 16 + v
            return te.if_then_else(channel < 32, a[n, channel, h, w], b[n, channel - 32, h, w])

        return te.compute((2, 4, 16, 16, 16), element, name="pack")

    assert program("x86-64-v4", [shape, shape], blocked) is None


def test_a_symbolic_outer_size():
    x = normal(5, 7, 40)
    got = run(lambda a: R.add(R.permute_dims(a, [0, 2, 1]), relax.const(1.0)), [x], shapes=[("n", 7, 40)]).outputs[0]
    assert_close(got, x.transpose(0, 2, 1) + 1)


def axes_of(compute, *shapes):
    tensors = [te.placeholder(shape, "float32", name=f"x{i}") for i, shape in enumerate(shapes)]
    func = te.create_prim_func([*tensors, compute(*tensors)])
    found = strided(analysis.nests(func)[0].block, list(func.params))
    return None if found is None else [(axis.extent, found.store.strides[i]) for i, axis in enumerate(found.axes)]


def test_axes_are_coalesced_and_split():
    copy = axes_of(lambda x: te.compute(x.shape, lambda a, b, c: x[a, b, c] * 2), (3, 1, 5))
    assert copy == axes_of(lambda x: te.compute(x.shape, lambda a: x[a] * 2), (15,)) == [(15, 1)]
    bias = axes_of(lambda x, y: te.compute(x.shape, lambda a, b, c: x[a, b, c] + y[b]), (3, 4, 5), (4,))
    assert bias == [(3, 20), (4, 5), (5, 1)]
    merged = axes_of(lambda x: te.compute((5, 24), lambda i, j: x[j // 8, i, j % 8]), (3, 5, 8))
    assert merged == [(5, 24), (3, 8), (8, 1)]
    condition = axes_of(lambda x: te.compute((6, 5), lambda i, j: te.if_then_else(i < 4, x[i, j], 0.0)), (6, 5))
    assert condition == [(6, 5), (5, 1)]
    assert axes_of(lambda x, y: te.compute((6,), lambda i: x[y[i].astype("int64")]), (6,), (6,)) is None


def test_what_has_a_program():
    turned = program("x86-64-v4", [(40, 50)], lambda x: te.compute((50, 40), lambda i, j: x[j, i]))
    assert turned is not None and "relaxc_transpose_16x32_50_40" in turned
    added = program("x86-64-v3", [(40, 50), (40,)], lambda x, y: te.compute((50, 40), lambda i, j: x[j, i] + y[j]))
    assert added is not None and "relaxc_transpose_8x32_50_8" in added and "vectorized" in added
    assert program("x86-64-v3", [(40, 50)], lambda x: te.compute((40, 25), lambda i, j: x[i, 2 * j])) is None
    assert program("x86-64-v3", [(40, 3)], lambda x: te.compute((3, 40), lambda i, j: x[j, i])) is None


def test_the_code_of_a_square():
    assert transpose_code(2, 32, 5, 7).count("shufflevector") == 2
    assert transpose_code(16, 32, 16, 16).count("shufflevector") == 64


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("blocks", [(1,), (2, 1, 3), (1,) * 9])
def test_cases_of_outer_axes_choose_among_loops(batch, blocks):
    parts = [normal(batch, count, 5, 7, 16, seed=i) for i, count in enumerate(blocks)]
    scale = normal(1, sum(blocks), 1, 1, 16)

    def build(scale, *parts):
        return R.nn.relu(R.multiply(R.concat(list(parts), axis=1), scale))

    ran = run(build, [scale, *parts])
    np.testing.assert_array_equal(ran.outputs[0], np.maximum(np.concatenate(parts, 1) * scale, 0))
    text = ran.module.script(show_meta=False)
    assert "if_then_else" not in text
    assert text.count("T.vectorized") == len(blocks)


def test_two_chains_of_cases_are_not_multiplied():
    parts = [normal(2, count, 33, seed=i) for i, count in enumerate((4, 2, 1, 5))]

    def build(a, b, c, d):
        return R.add(R.concat([a, b], 1), R.concat([c, d], 1))

    ran = run(build, parts)
    want = np.concatenate(parts[:2], 1) + np.concatenate(parts[2:], 1)
    np.testing.assert_array_equal(ran.outputs[0], want)
    assert ran.module.script(show_meta=False).count("T.vectorized") == 2


def test_one_chain_in_two_places():
    a, b = normal(2, 4, 33), normal(2, 3, 33, seed=1)

    def build(a, b):
        both = R.concat([a, b], 1)
        return R.add(R.nn.relu(both), R.multiply(both, both))

    both = np.concatenate([a, b], 1)
    assert_close(run(build, [a, b]).outputs[0], np.maximum(both, 0) + both * both)
