"""A loop whose rest LoopPartition counts in integers of two widths."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relaxc.service import compiler
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write


def test_a_convolution_whose_rest_is_of_another_width_compiles(tmp_path: Path) -> None:
    """Copy 129 columns in strips of 13, under a batch that only a call knows."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((1, 1, 1, 16)).astype("float32")
    nodes = [node("Pad", ["x", "pads"], ["p"], mode="reflect"), node("Conv", ["p", "w"], ["y"], strides=[1, 2])]
    pads = np.array([0, 0, 0, 8, 0, 0, 0, 8])
    made = model(nodes, [value("x", ["b", 1, 1, 256])], [value("y", ["b", 1, 1, 129])], w=w, pads=pads)
    compiler.run(compiler.prepare(write(tmp_path, made), target="x86-64-v3"), tmp_path, lambda event: None)
    x = rng.standard_normal((2, 1, 1, 256)).astype("float32")
    padded = np.pad(x[:, 0, 0], ((0, 0), (8, 8)), "reflect")
    want = np.lib.stride_tricks.sliding_window_view(padded, 16, axis=1)[:, ::2] @ w[0, 0, 0]
    np.testing.assert_allclose(load(tmp_path / "model.so")(x=x)["y"][:, 0, 0], want, rtol=1e-4, atol=1e-5)
