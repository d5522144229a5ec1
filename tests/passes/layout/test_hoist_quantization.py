"""Quantization stands where values are made, before they are moved; the numbers stay the same, to the bit."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.layout.hoist_quantization import HoistQuantization
from tests.passes.graphs import TARGET, assert_unchanged, compute, graph, operators, random
from tests.passes.quantized import data, projected, quantize, round_trip


def hoisted(module: tvm.IRModule) -> tvm.IRModule:
    with TARGET:
        return relax.transform.DeadCodeElimination()(HoistQuantization()(module))


def test_a_projection_is_in_16_bits_before_its_heads_are_moved() -> None:
    module = graph(lambda x: projected(x, 1), x=("uint8", (2, 9, 16)))
    changed = hoisted(module)
    assert operators(changed)[-3:] == ["astype", "reshape", "permute_dims"]
    for got, want in zip(compute(changed, data()), compute(module, data()), strict=True):
        np.testing.assert_array_equal(got, want)


def test_bytes_move_where_they_stay_bytes() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        return quantize(emit(op.permute_dims(emit(op.exp(x)), [1, 0])), 0.1, 3)

    module = graph(net, x=(4, 6))
    changed = hoisted(module)
    assert operators(changed) == ["exp", "quantize", "permute_dims"]
    given = random(4, 6)
    np.testing.assert_array_equal(compute(changed, given)[0], compute(module, given)[0])


def test_what_comes_from_outside_or_is_read_twice_stays() -> None:
    """A kernel would quantize it, and another move it."""

    def moved_input(x: relax.Expr) -> relax.Expr:
        return quantize(relax.BlockBuilder.current().emit(op.permute_dims(x, [1, 0])), 0.1, 3)

    def read_twice(x: relax.Expr) -> tuple[relax.Expr, ...]:
        emit = relax.BlockBuilder.current().emit
        moved = emit(op.permute_dims(emit(op.exp(x)), [1, 0]))
        return emit(round_trip(moved, 0.1)), moved

    for net in (moved_input, read_twice):
        assert_unchanged(graph(net, x=(4, 6)), HoistQuantization())
