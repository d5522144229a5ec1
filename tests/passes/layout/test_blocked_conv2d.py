"""Convolutions on blocked images: of all geometries, of groups, and of gated images."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax

from tests.passes.graphs import graph, operators
from tests.passes.layout.blocked import blocked, inputs, same, weight

pytestmark = pytest.mark.sampled

R = relax.op


@pytest.mark.parametrize("channels", [3, 8, 13, 24])
@pytest.mark.parametrize(
    "geometry",
    [
        {},
        {"padding": 1},
        {"strides": 2, "padding": (1, 0, 2, 1)},
        {"dilation": 2, "padding": 2},
        {"strides": (2, 1)},
    ],
)
def test_any_channels_strides_dilations_and_paddings(channels: int, geometry: dict[str, Any]) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        return R.sigmoid(R.nn.conv2d(x, weight(10, channels, 3, 3), **geometry))

    module = graph(net, x=(1, channels, 13, 31))
    changed, _ = blocked(module)
    assert not changed.same_as(module)
    same(module, changed, *inputs((1, channels, 13, 31)))


@pytest.mark.parametrize(("groups", "channels", "out"), [(24, 24, 24), (13, 13, 13), (2, 32, 16), (4, 32, 64)])
def test_depthwise_and_grouped(groups: int, channels: int, out: int) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        return R.nn.relu(R.nn.conv2d(x, weight(out, channels // groups, 3, 3), padding=1, groups=groups))

    module = graph(net, x=(2, channels, 7, 10))
    changed, _ = blocked(module)
    assert not changed.same_as(module)
    same(module, changed, *inputs((2, channels, 7, 10)))


def test_groups_that_do_not_fill_vectors_stay_as_they_are() -> None:
    module = graph(lambda x: R.nn.conv2d(x, weight(12, 6, 3, 3), groups=2), x=(1, 12, 8, 8))
    assert blocked(module)[0].same_as(module)


def squeeze_and_excite(reads: int, size: int, out: int, padding: int = 0, batch: Any = 2) -> tvm.IRModule:
    """A gated image that `reads` convolutions read."""
    kernel = 2 * padding + 1

    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.relu(R.nn.conv2d(x, weight(20, 20, 1, 1)))
        gate = R.nn.conv2d(R.nn.silu(R.nn.conv2d(R.mean(y, [2, 3], True), weight(4, 20, 1, 1))), weight(20, 4, 1, 1))
        z = R.multiply(R.sigmoid(gate), y)
        results = [R.nn.conv2d(z, weight(out, 20, kernel, kernel), padding=padding) for _ in range(reads)]
        return R.nn.relu(results[0] if reads == 1 else R.add(*results))

    return graph(net, x=(batch, 20, size, size + 1))


@pytest.mark.sampled("3-70-0", "9-16-0")
@pytest.mark.parametrize(("size", "out", "padding"), [(3, 70, 0), (9, 16, 0), (9, 16, 1), (3, 70, 1)])
def test_a_gate_is_in_the_convolution_that_reads_its_image(size: int, out: int, padding: int) -> None:
    module = squeeze_and_excite(1, size, out, padding)
    changed, _ = blocked(module)
    assert "multiply" not in operators(changed)
    same(module, changed, *inputs((2, 20, size, size + 1)))


@pytest.mark.slow
def test_an_image_read_twice_is_multiplied_once_and_not_within_the_gate() -> None:
    module = squeeze_and_excite(2, 9, 16)
    changed, _ = blocked(module)
    assert operators(changed).count("multiply") == 1
    fused = relax.transform.FuseOps()(relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(changed)))
    names = [str(var.name_hint) for var in fused.get_global_vars()]
    assert not [name for name in names if "sigmoid" in name and "multiply" in name]
    same(module, changed, *inputs((2, 20, 9, 10)))


@pytest.mark.slow
def test_a_gate_of_a_symbolic_batch() -> None:
    module = squeeze_and_excite(1, 9, 16, batch="n")
    changed, _ = blocked(module)
    assert "multiply" not in operators(changed)
    same(module, changed, *inputs((3, 20, 9, 10)))


def test_one_gate_for_a_batch_of_images_is_no_gate() -> None:
    def net(x: relax.Expr, g: relax.Expr) -> relax.Expr:
        y = R.multiply(R.nn.relu(R.nn.conv2d(x, weight(16, 16, 1, 1))), g)
        return R.nn.conv2d(y, weight(16, 16, 1, 1))

    module = graph(net, x=(3, 16, 5, 5), g=(1, 16, 1, 1))
    changed, _ = blocked(module)
    assert "multiply" in operators(changed)
    same(module, changed, *inputs((3, 16, 5, 5), (1, 16, 1, 1)))
