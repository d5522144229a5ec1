"""Winograd's transforms: exact in exact arithmetic, bounded in float32, and chosen where they pay."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.conv.winograd_compute import POINTS, conv2d, matrices, transform_weight
from relaxc.schedules.hardware import CPUS, cpu_of
from relaxc.schedules.plan import Plan
from relaxc.service.passes.layout.block_channels import BlockChannels
from relaxc.service.passes.report import OptimizeReport
from relaxc.service.runtime.compare import compare
from relaxc.service.runtime.tolerances import TOLERANCES
from tests.passes.graphs import TARGET, compute, graph, operators
from tests.schedules.cpu.conv.test_winograd import operator

pytestmark = pytest.mark.sampled

R = relax.op
Array = np.ndarray[Any, Any]
SIZES = sorted(POINTS)
V4 = CPUS["x86-64-v4"]


@pytest.mark.parametrize("size", SIZES)
def test_the_matrices_are_exact(size: int) -> None:
    result, kernel, data = matrices(size)
    for i in range(size):
        for k in range(3):
            for d in range(size + 2):
                rows = range(size + 2)
                product = sum((result[i][j] * kernel[j][k] * data[j][d] for j in rows), Fraction(0))
                assert product == (d == i + k)


def test_two_by_two_is_as_published() -> None:
    _, kernel, _ = matrices(2)
    half = Fraction(1, 2)
    assert [tuple(map(abs, row)) for row in kernel] == [(1, 0, 0), (half, half, half), (half, half, half), (0, 0, 1)]


@pytest.mark.parametrize("size", SIZES)
def test_the_constants_are_floats(size: int) -> None:
    result, _, data = matrices(size)
    for row in (*result, *data):
        assert all(Fraction(float(np.float32(float(value)))) == value for value in row)


def amplification(size: int) -> float:
    """The factor c in |error| <= c (n eps) max |d| sum |g| for sums of n roundings; 1 for the direct method.

    The largest `(sum over j of |A^T[i, j]| |G[j, k]| sum |B^T[j, :]|)^2`, the square for two dimensions.
    """
    result, kernel, data = (np.abs(np.array(matrix, "float64")) for matrix in matrices(size))
    return float(((result * data.sum(axis=1)) @ kernel).max() ** 2)


def test_amplification() -> None:
    assert amplification(2) == 16
    assert 175 < amplification(4) < 176


def convolution(data: Array, weight: Array, dtype: str) -> Array:
    """The sum over channels and taps in order, in `dtype`, without padding."""
    height, width = data.shape[2] - 2, data.shape[3] - 2
    total = np.zeros((data.shape[0], weight.shape[0], height, width), dtype)
    for c in range(data.shape[1]):
        for r in range(3):
            for q in range(3):
                pixels = data[:, c, None, r : r + height, q : q + width].astype(dtype)
                total += pixels * weight[None, :, c, r, q, None, None].astype(dtype)
    return total


def ours(data: Array, weight: Array, size: int) -> Array:
    """The same by the tensor expression, unscheduled."""
    batch, channels, height, width = data.shape
    tiles = batch * -(-(height - 2) // size) * -(-(width - 2) // size)
    lanes = 4
    op = operator(data.shape, weight.shape[0], (0, 0, 0, 0))
    layout = {"block": lanes, "size": size, "vectors": 1, "padded": tiles}

    def net(x: relax.Expr) -> relax.Expr:
        packed = relax.const(transform_weight(weight, size, lanes, 1))
        block = relax.BlockBuilder.current()
        function = partial(conv2d, plan=Plan(op, "cpu.winograd", layout))
        return block.emit_te(function, x, packed, primfunc_name_hint="winograd")

    blocked = data.reshape(batch, channels // lanes, lanes, height, width).transpose(0, 1, 3, 4, 2)
    (found,) = compute(graph(net, x=blocked.shape), np.ascontiguousarray(blocked))
    return found.transpose(0, 1, 4, 2, 3).reshape(batch, -1, height - 2, width - 2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("out, into", [(32, 16), (70, 50), (5, 130)])
def test_weights_are_transformed_in_float64(size: int, out: int, into: int) -> None:
    weight = np.random.default_rng(size).standard_normal((out, into, 3, 3)).astype("float32")
    kernel = np.array([[float(element) for element in row] for row in matrices(size)[1]])
    lanes, vectors = 8, 4
    lines = np.tensordot(weight.astype(np.float64), kernel, (3, 1))
    full = np.tensordot(lines, kernel, (2, 1)).astype("float32")  # O, I, x, y
    padded = np.pad(full, ((0, -out % 32), (0, -into % 8), (0, 0), (0, 0)))
    want = padded.reshape(-1, 32, *padded.shape[1:]).transpose(0, 4, 3, 2, 1)
    np.testing.assert_array_equal(transform_weight(weight, size, lanes, vectors), want)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["normal", "positive", "one large", "alternating"])
def test_the_error_is_bounded(size: int, kind: str) -> None:
    rng = np.random.default_rng(size)
    data, weight = rng.standard_normal((1, 64, 18, 18)), rng.standard_normal((8, 64, 3, 3))
    if kind == "positive":
        data, weight = np.abs(data), np.abs(weight)
    elif kind == "one large":
        data[0, 0, 9, 9] = 1000
    elif kind == "alternating":
        data, weight = (array * (-1.0) ** np.indices(array.shape).sum(axis=0) for array in (data, weight))
    data, weight = data.astype("float32"), weight.astype("float32")
    want, got = convolution(data, weight, "float64"), ours(data, weight, size)
    bound = amplification(size) * np.abs(data).max() * np.abs(weight).sum(axis=(1, 2, 3)).max()
    roundings = 64 + 4 * (size + 2)
    assert np.abs(got - want).max() <= bound * roundings * np.finfo(np.float32).eps
    # What is measured is far less: the error of a sum in order, times 0.7 (size 2) or 2 (size 4).
    in_order = np.abs(convolution(data, weight, "float32") - want)
    assert np.sqrt(np.mean((got - want) ** 2)) <= 4 * np.sqrt(np.mean(in_order**2)) + 1e-6 * np.abs(data).max()
    verdict = compare({"y": got}, {"y": want.astype("float32")})
    assert verdict.passed, verdict.reason
    if kind == "normal":
        assert verdict.outputs[0].scaled_error < TOLERANCES["float32"].error / 5


def test_what_is_not_finite_stays_in_its_tile() -> None:
    data, weight = np.ones((1, 4, 18, 18), "float32"), np.ones((4, 4, 3, 3), "float32")
    data[0, 0, 9, 9] = np.nan
    got = ours(data, weight, 4)
    assert np.isnan(got[0, :, 7:10, 7:10]).all()
    assert np.isfinite(got[0, :, :4]).all() and np.isfinite(got[0, :, :, 12:]).all()


@pytest.mark.parametrize(
    ("image", "out", "size"),
    [
        ((1, 64, 56, 56), 64, 4),
        ((1, 128, 28, 28), 128, 4),
        ((1, 256, 14, 14), 256, 2),
        ((1, 512, 7, 7), 512, None),
        ((8, 512, 7, 7), 512, 4),
        ((1, 64, 224, 224), 64, 4),
        ((1, 512, 3, 3), 512, None),
        ((1, 3, 224, 224), 64, None),
        ((1, 64, 56, 56), 3, None),
    ],
)
def test_the_choice_is_by_cost(image: tuple[int, ...], out: int, size: int | None) -> None:
    found = planning.default(operator(image, out), V4)
    assert found.parameters.get("size") == size
    assert found.template == ("cpu.winograd" if size else "cpu.conv2d_blocked")


def test_only_plain_convolutions_of_known_size() -> None:
    plain = operator((1, 64, 56, 56), 64)
    assert planning.default(plain, V4).template == "cpu.winograd"
    others: list[dict[str, Any]] = [
        *({"batch": 0}, {"kernel": (5, 5)}, {"kernel": (1, 3)}, {"strides": (2, 2)}, {"strides": (1, 2)}),
        *({"dilation": (2, 2)}, {"groups": 8}, {"gated": True}),
    ]
    for changed in others:
        assert planning.default(replace(plain, **changed), V4).template == "cpu.conv2d_blocked"


def test_a_direct_plan_that_reads_its_weights_from_l3_gives_way() -> None:
    """With 256 KiB of L2 a task has two tiles of the 7x7 image; with 1 MiB it has all of them."""
    op = operator((1, 512, 7, 7), 512)
    assert planning.default(op, CPUS["x86-64-v3"]).parameters.get("size") == 2
    assert planning.default(op, V4).template == "cpu.conv2d_blocked"


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_wide_groups_are_by_cost_too(name: str) -> None:
    """As RegNet has them: each of its groups of 64 is a convolution of 64 channels."""
    for channels, size in ((192, 28), (512, 14)):
        op = operator((1, channels, size, size), channels, groups=channels // 64)
        assert planning.default(op, CPUS[name]).template == "cpu.winograd"


def net(channels: int) -> Any:
    """Two convolutions, the second with a residual."""
    rng = np.random.default_rng(1)

    def weight() -> relax.Expr:
        scale = np.sqrt(2 / 9 / channels)
        return relax.const((scale * rng.standard_normal((channels, channels, 3, 3))).astype("float32"))

    def build(x: relax.Expr) -> relax.Expr:
        y = R.nn.relu(R.nn.conv2d(x, weight(), padding=1))
        return R.nn.relu(R.add(R.nn.conv2d(y, weight(), padding=(0, 2, 2, 0)), y))

    return build


def blocked(module: tvm.IRModule) -> tvm.IRModule:
    return BlockChannels(OptimizeReport(), cpu_of(TARGET))(module)


@pytest.mark.slow
def test_a_graph_before_and_after() -> None:
    module = graph(net(72), x=(1, 72, 30, 29))
    changed = blocked(module)
    chain = ["winograd_conv2d", "nn.relu", "winograd_conv2d1", "add", "nn.relu"]
    assert operators(changed) == ["pack_channels", *chain, "unpack_channels"]
    x = np.random.default_rng(2).standard_normal((1, 72, 30, 29)).astype("float32")
    (got,), (want,) = compute(changed, x), compute(module, x)
    verdict = compare({"y": got}, {"y": want})
    assert verdict.passed and verdict.outputs[0].scaled_error < TOLERANCES["float32"].error / 5


def test_its_epilogue_is_fused() -> None:
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    passes += [relax.transform.FuseOps(), relax.transform.FuseTIR()]
    fused = tvm.ir.transform.Sequential(passes)(blocked(graph(net(64), x=(1, 64, 30, 30))))
    names = sorted(str(var.name_hint) for var in fused.get_global_vars())
    assert [name for name in names if "winograd" in name] == [
        "fused_winograd_conv2d1_add_relu",
        "fused_winograd_conv2d_relu",
    ]


def test_a_symbolic_batch_and_half_precision_are_direct() -> None:
    assert "winograd_conv2d" not in operators(blocked(graph(net(64), x=("n", 64, 30, 30))))
    weight = relax.const(np.ones((64, 64, 3, 3), "float16"))
    half = graph(lambda x: R.nn.conv2d(x, weight), x=("float16", (1, 64, 30, 30)))
    assert blocked(half).same_as(half)
