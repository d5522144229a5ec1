"""Of two images that are added one is written in 16 bits."""

from __future__ import annotations

from tvm import relax

from tests.passes.graphs import graph, operators
from tests.passes.layout.nhwc import changed, conv, low

R = relax.op


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
