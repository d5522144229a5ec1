"""Blocked convolutions: the form that a graph takes, and that it computes what was asked."""

from __future__ import annotations

from tvm import relax

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
