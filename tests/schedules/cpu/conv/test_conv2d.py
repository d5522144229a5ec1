"""Convolutions against torch: strides, padding, dilation, groups, layouts, ranks, symbolic sizes."""

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


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def conv(x: np.ndarray, w: np.ndarray, **options) -> np.ndarray:
    return F.conv2d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), **options).float().numpy()


CASES = [
    # batch, in, height, width, out, kernel, stride, padding, dilation, groups
    (1, 3, 32, 32, 16, 3, 1, 1, 1, 1),
    (1, 3, 33, 31, 7, 7, 2, 3, 1, 1),
    (2, 16, 14, 14, 24, 1, 1, 0, 1, 1),
    (1, 32, 7, 7, 40, 3, 1, 1, 1, 1),
    (1, 13, 13, 13, 31, 3, 2, 1, 1, 1),
    (3, 8, 9, 5, 13, 3, 1, 0, 2, 1),
    (1, 1, 5, 5, 1, 5, 1, 0, 1, 1),
    (1, 16, 28, 28, 16, 1, 2, 0, 1, 1),
    (1, 24, 15, 15, 36, 3, 1, 1, 1, 3),
    (2, 32, 8, 8, 32, 3, 2, 1, 1, 4),
    (1, 12, 10, 10, 24, 3, 1, 1, 1, 12),
    (1, 8, 1, 40, 8, 1, 1, 0, 1, 1),
    (1, 64, 56, 8, 64, 3, 1, 1, 1, 1),
    (1, 4, 16, 16, 8, 4, 4, 0, 1, 1),
]


@pytest.mark.sampled(most=6)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d(case):
    n, c, h, w, f, k, stride, padding, dilation, groups = case
    x, weight = normal(n, c, h, w), normal(f, c // groups, k, k, seed=1)
    options = {"padding": padding, "dilation": dilation, "groups": groups}
    ran = run(lambda a, b: R.nn.conv2d(a, b, strides=stride, **options), [x, weight])
    assert_close(ran.outputs[0], conv(x, weight, stride=stride, **options))
    assert ran.rules == ["cpu.conv2d"], ran.report


@pytest.mark.parametrize("padding", [(0, 1, 2, 0), (2, 0, 0, 1)])
def test_asymmetric_padding_and_epilogue(padding):
    top, left, bottom, right = padding
    x, weight, bias, residual = normal(1, 5, 12, 11), normal(9, 5, 3, 3, seed=1), normal(9, seed=2), None
    want = conv(np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))), weight)
    residual = normal(*want.shape, seed=3)

    def build(a, b, c, d):
        y = R.add(R.nn.conv2d(a, b, padding=padding), R.reshape(c, (1, 9, 1, 1)))
        return R.nn.relu(R.add(y, d))

    ran = run(build, [x, weight, bias, residual])
    assert_close(ran.outputs[0], np.maximum(want + bias.reshape(1, 9, 1, 1) + residual, 0))


def test_nhwc():
    x, weight = normal(2, 10, 11, 12), normal(24, 3, 3, 12, seed=1)
    ran = run(lambda a, b: R.nn.conv2d(a, b, padding=1, data_layout="NHWC", kernel_layout="OHWI"), [x, weight])
    want = conv(x.transpose(0, 3, 1, 2), np.ascontiguousarray(weight.transpose(0, 3, 1, 2)), padding=1)
    assert_close(ran.outputs[0], want.transpose(0, 2, 3, 1))
    assert ran.rules == ["cpu.conv2d"]


@pytest.mark.parametrize(("kernel", "stride", "groups"), [(3, 1, 1), (4, 2, 1), (5, 1, 2), (1, 1, 1)])
def test_conv1d(kernel, stride, groups):
    x, weight = normal(2, 8, 37), normal(12, 8 // groups, kernel, seed=1)
    ran = run(lambda a, b: R.nn.conv1d(a, b, strides=stride, padding=1, groups=groups), [x, weight])
    want = F.conv1d(torch.from_numpy(x), torch.from_numpy(weight), stride=stride, padding=1, groups=groups)
    assert_close(ran.outputs[0], want.numpy())


def test_conv3d():
    x, weight = normal(1, 4, 6, 7, 8), normal(5, 4, 3, 3, 3, seed=1)
    ran = run(lambda a, b: R.nn.conv3d(a, b, padding=1), [x, weight])
    assert_close(ran.outputs[0], F.conv3d(torch.from_numpy(x), torch.from_numpy(weight), padding=1).numpy())


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 1, 1), (2, 1, 1), (2, 0, 2)])
def test_transposed(stride, padding, groups):
    x, weight = normal(1, 8, 9, 9), normal(8, 6 // groups, 3, 3, seed=1)
    ran = run(lambda a, b: R.nn.conv2d_transpose(a, b, strides=stride, padding=padding, groups=groups), [x, weight])
    tensors = torch.from_numpy(x), torch.from_numpy(weight)
    want = F.conv_transpose2d(*tensors, stride=stride, padding=padding, groups=groups)
    assert_close(ran.outputs[0], want.numpy())


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ([("n", 8, 10, 10), (12, 8, 3, 3)], {"padding": 1}),
        ([("n", 8, 10, 10), (12, 8, 1, 1)], {}),
        ([("n", 8, 9, 9), (8, 1, 3, 3)], {"padding": 1, "groups": 8}),
    ],
)
def test_symbolic_batch(shapes, options):
    weight = normal(*shapes[1], seed=1)
    calls = [[normal(size, *shapes[0][1:]), weight] for size in (1, 2, 5)]
    for (x, _), ran in zip(
        calls, run_many(lambda a, b: R.nn.conv2d(a, b, **options), calls, shapes=shapes), strict=True
    ):
        assert_close(ran.outputs[0], conv(x, weight, **options))
        assert ran.rules != ["cpu.fallback"], ran.report


def test_symbolic_height_and_width():
    shapes = [(1, 4, "h", "w"), (6, 4, 3, 3)]
    weight = normal(*shapes[1], seed=1)
    calls = [[normal(1, 4, h, w), weight] for h, w in ((3, 3), (8, 5), (17, 33))]
    build = lambda a, b: R.nn.conv2d(a, b, padding=1)  # noqa: E731
    for (x, _), ran in zip(calls, run_many(build, calls, shapes=shapes), strict=True):
        assert_close(ran.outputs[0], conv(x, weight, padding=1))


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_other_vector_widths(target):
    x, weight = normal(1, 8, 14, 14), normal(12, 8, 3, 3, seed=1)
    ran = run(lambda a, b: R.nn.conv2d(a, b, padding=1), [x, weight], spec=resolve(target))
    assert_close(ran.outputs[0], conv(x, weight, padding=1))


DEPTHWISE = [
    # batch, channels, height, width, kernel, stride, padding, dilation
    (1, 8, 28, 28, 3, 1, 1, 1),
    (1, 8, 28, 28, 3, 2, 1, 1),
    (2, 5, 7, 7, 3, 1, 1, 1),
    (1, 16, 13, 31, 5, 1, 2, 1),
    (1, 3, 20, 20, 7, 1, 3, 1),
    (1, 6, 17, 18, 3, 1, 0, 2),
    (1, 1, 30, 30, 3, 2, 0, 1),
    (1, 32, 1, 1, 1, 1, 0, 1),
    (1, 4, 112, 112, 3, 1, 1, 1),
]


@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
@pytest.mark.parametrize("activation", [False, True])
def test_depthwise(case, activation):
    n, c, h, w, k, stride, padding, dilation = case
    x, weight = normal(n, c, h, w), normal(c, 1, k, k, seed=1)
    options = {"padding": padding, "dilation": dilation, "groups": c}

    def build(a, b):
        y = R.nn.conv2d(a, b, strides=stride, **options)
        return R.clip(y, 0, 6) if activation else y

    ran = run(build, [x, weight])
    want = conv(x, weight, stride=stride, **options)
    assert_close(ran.outputs[0], np.clip(want, 0, 6) if activation else want)
    if c > 1 and k > 1:
        assert ran.rules == ["cpu.depthwise"], ran.report


def test_two_channels_a_group():
    x, weight = normal(1, 6, 12, 12), normal(12, 1, 3, 3, seed=1)
    ran = run(lambda a, b: R.nn.conv2d(a, b, padding=1, groups=6), [x, weight])
    assert_close(ran.outputs[0], conv(x, weight, padding=1, groups=6))


@pytest.mark.parametrize("length", [5, 64, 300])
def test_depthwise_over_a_line_and_a_volume(length):
    x, weight = normal(2, 6, length), normal(6, 1, 4, seed=1)
    ran = run(lambda a, b: R.nn.conv1d(a, b, padding=3, groups=6), [x, weight])
    want = F.conv1d(torch.from_numpy(x), torch.from_numpy(weight), padding=3, groups=6).numpy()
    assert_close(ran.outputs[0], want)
    assert ran.rules == ["cpu.depthwise"]
    y, kernel = normal(1, 3, 4, 5, length), normal(3, 1, 3, 3, 3, seed=1)
    ran = run(lambda a, b: R.nn.conv3d(a, b, padding=1, groups=3), [y, kernel])
    assert_close(ran.outputs[0], F.conv3d(torch.from_numpy(y), torch.from_numpy(kernel), padding=1, groups=3).numpy())


def test_depthwise_nhwc():
    x, weight = normal(2, 9, 10, 20), normal(20, 3, 3, 1, seed=1)
    options = {"padding": 1, "groups": 20, "data_layout": "NHWC", "kernel_layout": "OHWI"}
    ran = run(lambda a, b: R.nn.conv2d(a, b, **options), [x, weight])
    want = conv(x.transpose(0, 3, 1, 2), np.ascontiguousarray(weight.transpose(0, 3, 1, 2)), padding=1, groups=20)
    assert_close(ran.outputs[0], want.transpose(0, 2, 3, 1))
