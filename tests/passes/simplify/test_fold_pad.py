"""FoldPad: zeros around the input of a convolution are its padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from relaxc.service.passes.simplify.fold_pad import FoldPad
from tests.passes.graphs import assert_becomes, assert_unchanged, compute, graph, random, weights

SIDES = (0, 0, 0, 0, 0, 1, 2, 3)
"""Widths of a pad of NCHW: a row below, two columns left and three right."""


def conv2d(x: Any, padding: tuple[int, ...], **attrs: Any) -> Any:
    return op.nn.conv2d(x, weights(6, 4, 3, 3), padding=padding, **attrs)


@pytest.mark.parametrize("attrs", [{}, {"strides": (2, 1), "dilation": (1, 2)}])
def test_a_pad_is_the_padding_of_the_convolution_behind_it(attrs: dict[str, Any]) -> None:
    given = graph(lambda x: conv2d(op.nn.pad(x, SIDES), (1, 0, 2, 0), **attrs), x=("n", 4, 9, 8))
    expected = graph(lambda x: conv2d(x, (1, 2, 3, 3), **attrs), x=("n", 4, 9, 8))
    assert_becomes(given, FoldPad(), expected)


def test_it_computes_the_same() -> None:
    given = graph(lambda x: conv2d(op.nn.pad(x, SIDES), (1, 0, 2, 0), strides=(2, 2)), x=(2, 4, 9, 8))
    x = random(2, 4, 9, 8)
    np.testing.assert_allclose(compute(FoldPad()(given), x)[0], compute(given, x)[0], rtol=1e-5, atol=1e-5)


def test_each_reader_of_a_pad_that_is_a_convolution_has_it() -> None:
    def build(padded: Any, x: Any) -> Any:
        return op.add(conv2d(padded(x), (0, 0, 0, 0)), conv2d(padded(x), (0, 0, 0, 0), groups=1))

    given = graph(lambda x: build(lambda x: op.nn.pad(x, SIDES), x), x=(1, 4, 9, 8))
    expected = graph(lambda x: op.add(conv2d(x, (0, 2, 1, 3)), conv2d(x, (0, 2, 1, 3), groups=1)), x=(1, 4, 9, 8))
    assert_becomes(given, FoldPad(), expected)


def test_other_layouts_and_ranks() -> None:
    last = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    given = graph(
        lambda x: op.nn.conv2d(op.nn.pad(x, (0, 0, 0, 1, 2, 3, 0, 0)), weights(3, 3, 4, 6), **last), x=(1, 9, 8, 4)
    )
    expected = graph(lambda x: op.nn.conv2d(x, weights(3, 3, 4, 6), padding=(0, 2, 1, 3), **last), x=(1, 9, 8, 4))
    assert_becomes(given, FoldPad(), expected)
    given = graph(lambda x: op.nn.conv1d(op.nn.pad(x, (0, 0, 0, 0, 2, 3)), weights(6, 4, 3), padding=1), x=(1, 4, 9))
    assert_becomes(given, FoldPad(), graph(lambda x: op.nn.conv1d(x, weights(6, 4, 3), padding=(3, 4)), x=(1, 4, 9)))
    given = graph(lambda x: op.nn.conv3d(op.nn.pad(x, (0,) * 8 + (2, 3)), weights(6, 4, 3, 3, 3)), x=(1, 4, 5, 6, 9))
    expected = graph(lambda x: op.nn.conv3d(x, weights(6, 4, 3, 3, 3), padding=(0, 0, 2, 0, 0, 3)), x=(1, 4, 5, 6, 9))
    assert_becomes(given, FoldPad(), expected)


@pytest.mark.parametrize(
    ("channels", "pad"),
    [
        (4, lambda x: op.nn.pad(x, SIDES, pad_value=1.0)),
        (4, lambda x: op.nn.pad(x, SIDES, "reflect")),
        (5, lambda x: op.nn.pad(x, (0, 0, 1, 0, 0, 0, 0, 0))),
        (4, lambda x: op.nn.pad(x, (1, 0, 0, 0, 0, 0, 0, 0))),
    ],
    ids=["of ones", "reflected", "of channels", "of images"],
)
def test_another_pad_stays(channels: int, pad: Any) -> None:
    given = graph(lambda x: op.nn.conv2d(pad(x), weights(6, channels, 3, 3)), x=(1, 4, 9, 8))
    assert_unchanged(given, FoldPad())
