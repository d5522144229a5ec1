"""Blocked convolutions: the form that a graph takes, and that it computes what was asked."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax
from tvm.relax import block_builder

from tests.passes.graphs import graph, operators
from tests.passes.layout.blocked import blocked, inputs, same, weight

R = relax.op


def test_a_chain_is_packed_once_and_unpacked_once() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.relu(R.add(R.nn.conv2d(x, weight(16, 16, 3, 3), padding=1), weight(1, 16, 1, 1)))
        return R.nn.relu(R.add(R.nn.conv2d(y, weight(16, 16, 1, 1)), y))

    module = graph(net, x=(2, 16, 9, 11))
    changed, reason = blocked(module)
    assert reason == "2 convolutions blocked, 1 packs and 1 unpacks"
    assert operators(changed) == [
        *("pack_channels", "conv2d", "add", "nn.relu"),
        *("conv2d1", "add", "nn.relu", "unpack_channels"),
    ]
    same(module, changed, *inputs((2, 16, 9, 11)))


def test_a_symbolic_batch() -> None:
    module = graph(lambda x: R.nn.relu(R.nn.conv2d(x, weight(16, 16, 3, 3), padding=1)), x=("n", 16, 8, 8))
    changed, _ = blocked(module)
    assert not changed.same_as(module)
    for batch in (1, 3):
        same(module, changed, *inputs((batch, 16, 8, 8)))


def test_equal_convolutions_are_made_into_a_prim_func_once() -> None:
    """To make one takes TVM milliseconds, and a ResNet has fifty convolutions of twenty kinds."""

    def net(x: relax.Expr) -> relax.Expr:
        return R.nn.conv2d(R.nn.conv2d(x, weight(16, 16, 1, 1)), weight(16, 16, 1, 1))

    module, made = graph(net, x=(1, 16, 8, 8)), []
    given = block_builder.gen_call_tir_inputs

    def counted(function: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(function)
        return given(function, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_builder, "gen_call_tir_inputs", counted)
        changed, _ = blocked(module)
    assert len(made) == 3  # packed, convolved, unpacked
    assert operators(changed) == ["pack_channels", "conv2d", "conv2d", "unpack_channels"]
    same(module, changed, *inputs((1, 16, 8, 8)))
