"""NHWC for a GPU's templates: the form that graphs take, and that they compute what was asked (on a CPU here)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from schedules.cuda import RULES
from schedules.template import Schedule
from service.passes import optimize
from service.passes.layout.images_last import ImagesLast
from service.passes.report import OptimizeReport
from service.request import CompileOptions, Precision
from tests.passes.graphs import TARGET, compute, graph, operators, weights

R = relax.op


def conv(x: relax.Expr, filters: int, channels: int, size: int = 3, **geometry: Any) -> relax.Expr:
    """A convolution of 16-bit floats that is summed in fp32."""
    return R.nn.conv2d(x, weights(filters, channels, size, size, dtype="float16"), out_dtype="float32", **geometry)


def low(x: relax.Expr) -> relax.Expr:
    return R.astype(x, "float16")


def changed(module: tvm.IRModule) -> tuple[tvm.IRModule, OptimizeReport]:
    """The module after the pass, and its report."""
    report = OptimizeReport()
    result = ImagesLast(report)(module)
    return relax.transform.CanonicalizeBindings()(result), report


def same(net: Callable[..., relax.Expr], **inputs: tuple[int, ...]) -> list[str]:
    """The operators after the pass, which gives what the graph gave before."""
    module = graph(net, **{name: ("float16", shape) for name, shape in inputs.items()})
    result, report = changed(module)
    assert report.layout.chosen == "NHWC"
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(shape).astype("float16") for shape in inputs.values()]
    for got, want in zip(compute(result, *arrays), compute(module, *arrays), strict=True):
        np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=4e-3, atol=4e-3)
    return operators(result)


def test_a_residual_block_is_permuted_at_its_ends_only() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = low(R.nn.relu(R.add(conv(x, 16, 8, padding=1, strides=2), weights(1, 16, 1, 1))))
        y = R.add(conv(y, 16, 16, padding=1), weights(1, 16, 1, 1))
        return low(R.nn.relu(R.add(y, R.add(conv(x, 16, 8, 1, strides=2), weights(1, 16, 1, 1)))))

    found = same(net, x=(2, 8, 9, 11))
    assert found[0] == "permute_dims" and found[-1] == "permute_dims" and found.count("permute_dims") == 2


def test_what_is_added_to_a_sum_is_written_in_16_bits() -> None:
    module = graph(lambda x: low(R.add(conv(x, 16, 8, 1), conv(x, 16, 8, padding=1))), x=("float16", (1, 8, 4, 4)))
    assert operators(changed(module)[0]) == [
        "permute_dims",
        "conv2d",
        "conv2d1",
        "astype",
        "add",
        "astype",
        "permute_dims",
    ]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "geometry",
    [
        {"padding": 1},
        {"strides": 2, "padding": (1, 0, 2, 1)},
        {"dilation": 2, "padding": 2},
        {"strides": (2, 1)},
    ],
)
@pytest.mark.parametrize("channels", [3, 8])
def test_any_strides_dilations_and_paddings(channels: int, geometry: dict[str, Any]) -> None:
    if channels == 3 and "dilation" in geometry:
        module = graph(lambda x: conv(x, 8, 3, **geometry), x=("float16", (1, 3, 9, 10)))
        assert changed(module)[1].layout.chosen == "NCHW"
        return
    same(lambda x: low(conv(x, 8, channels, **geometry)), x=(1, channels, 9, 10))


def test_depthwise_and_pooling() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = low(R.nn.conv2d(x, weights(16, 1, 3, 3, dtype="float16"), groups=16, padding=1, out_dtype="float32"))
        y = R.nn.max_pool2d(y, (3, 2), (2, 1), (1, 0))
        mean = R.nn.avg_pool2d(R.astype(y, "float32"), 3, 1, 1, count_include_pad=False)
        whole = R.nn.adaptive_avg_pool2d(R.astype(y, "float32"), 1)
        gate = R.sigmoid(R.mean(R.astype(y, "float32"), [2, 3], keepdims=True))
        return R.add(R.multiply(mean, gate), whole)

    assert "permute_dims" in same(net, x=(2, 16, 9, 8))


def test_group_norms_read_and_write_images_as_they_are() -> None:
    def norm(x: relax.Expr, channels: int) -> relax.Expr:
        scale, shift = (weights(channels, dtype="float32") for _ in range(2))
        return R.nn.group_norm(x, scale, shift, num_groups=4, channel_axis=1, axes=[2, 3], epsilon=1e-5)

    def net(x: relax.Expr) -> relax.Expr:
        y = conv(low(R.nn.silu(norm(R.astype(x, "float32"), 8))), 16, 8, padding=1)
        tokens = R.reshape(R.permute_dims(norm(y, 16), [0, 2, 3, 1]), (2, 30, 16))
        return low(R.add(tokens, R.reshape(R.permute_dims(conv(x, 16, 8, 1), [0, 2, 3, 1]), (2, 30, 16))))

    found = same(net, x=(2, 8, 5, 6))
    assert found[:4] == ["permute_dims", "group_norm", "nn.silu", "astype"]


@pytest.mark.slow
def test_means_without_their_dims_concatenation_and_results() -> None:
    def net(x: relax.Expr) -> tuple[relax.Expr, ...]:
        y = low(R.nn.silu(conv(x, 8, 8, 1)))
        both = R.concat([y, x], axis=1)
        return R.mean(R.astype(y, "float32"), [2, 3]), R.flatten(R.nn.adaptive_avg_pool2d(y, 1)), conv(both, 8, 16, 1)

    same(net, x=(2, 8, 5, 4))


@pytest.mark.parametrize(
    ("shape", "dtype", "arguments"),
    [
        (("n", 8, 4, 4), "float16", (8, 8)),
        ((1, 8, 4, 4), "float32", (8, 8)),
        ((1, 12, 4, 4), "float16", (8, 12)),
        ((1, 8, 4, 4), "float16", (12, 8)),
    ],
)
def test_what_the_templates_do_not_take_stays(shape: tuple[Any, ...], dtype: str, arguments: tuple[int, int]) -> None:
    weight = weights(*arguments, 1, 1, dtype=dtype)
    module = graph(lambda x: R.nn.conv2d(x, weight, out_dtype="float32"), x=(dtype, shape))
    assert operators(changed(module)[0]) == operators(module)


def test_grouped_convolutions_stay() -> None:
    weight = weights(16, 4, 3, 3, dtype="float16")
    module = graph(lambda x: R.nn.conv2d(x, weight, groups=4, out_dtype="float32"), x=("float16", (1, 16, 5, 5)))
    assert changed(module)[1].layout.chosen == "NCHW"


def test_a_small_resnet_has_kernels_of_templates_only() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.max_pool2d(R.nn.relu(image(x, 64, 3, 7, strides=2, padding=3)), 3, 2, 1)
        z = R.nn.relu(image(y, 64, 64, padding=1))
        y = R.nn.relu(R.add(image(z, 128, 64, padding=1, strides=2), image(y, 128, 64, 1, strides=2)))
        return R.matmul(R.flatten(R.nn.adaptive_avg_pool2d(y, 1)), weights(128, 16))

    def image(x: relax.Expr, filters: int, channels: int, size: int = 3, **geometry: Any) -> relax.Expr:
        value = R.nn.conv2d(x, weights(filters, channels, size, size), **geometry)
        return R.add(value, weights(1, filters, 1, 1))

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}, host=TARGET)
    made = optimize(graph(net, x=(1, 3, 32, 32)), target, CompileOptions(precision=Precision.FP16))
    rules = {}
    for gvar, func in made.module.functions_items():
        if isinstance(func, tvm.tirx.PrimFunc):
            taken = (rule.name for rule in RULES if isinstance(rule.apply(func, target), Schedule))
            rules[gvar.name_hint] = next(taken)
    dlights = [name for name, rule in rules.items() if not rule.endswith("sm90")]
    assert sorted(rule for rule in rules.values() if rule.endswith("sm90")) == [
        *["cuda.conv2d_sm90"] * 3,
        "cuda.gemm_sm90",
        "cuda.lines_sm90",
        "cuda.spread_sm90",
        *["cuda.windows_sm90"] * 2,
    ]
    assert not any("conv" in name or "transpose" in name for name in dlights), dlights
