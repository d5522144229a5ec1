"""Convolutions in NHWC: of all geometries, and which stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax

from tests.passes.graphs import graph, operators, weights
from tests.passes.layout.nhwc import changed, conv, low, same

R = relax.op


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


@pytest.mark.parametrize(
    ("shape", "dtype", "arguments"),
    [
        ((1, 8, 4, 4), "float32", (8, 8)),
        ((1, 12, 4, 4), "float16", (8, 12)),
        ((1, 8, 4, 4), "float16", (12, 8)),
    ],
)
def test_what_the_templates_do_not_take_stays(shape: tuple[Any, ...], dtype: str, arguments: tuple[int, int]) -> None:
    weight = weights(*arguments, 1, 1, dtype=dtype)
    module = graph(lambda x: R.nn.conv2d(x, weight, out_dtype="float32"), x=(dtype, shape))
    assert operators(changed(module)[0]) == operators(module)


@pytest.mark.parametrize("shape", [("n", 8, 4, 4), (2, 8, "h", "w")])
def test_images_of_unknown_size_are_changed(shape: tuple[Any, ...]) -> None:
    module = graph(lambda x: R.nn.relu(conv(x, 16, 8, padding=1, strides=2)), x=("float16", shape))
    result, report = changed(module)
    assert report.layout.chosen == "NHWC" and "relax.nn.conv2d" not in operators(result)


@pytest.mark.parametrize("channels", [3, 8])
def test_patches_beside_each_other_are_rows_of_a_product(channels: int) -> None:
    same(lambda x: low(conv(x, 8, channels, 16, strides=16)), x=(2, channels, 35, 32))


def test_grouped_convolutions_stay() -> None:
    weight = weights(16, 4, 3, 3, dtype="float16")
    module = graph(lambda x: R.nn.conv2d(x, weight, groups=4, out_dtype="float32"), x=("float16", (1, 16, 5, 5)))
    assert changed(module)[1].layout.chosen == "NCHW"
