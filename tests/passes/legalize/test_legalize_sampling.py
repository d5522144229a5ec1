"""Samples of an image of one pixel, reflected: each place is that pixel."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, graph, run


@pytest.mark.parametrize("method", ["bilinear", "nearest", "bicubic"])
def test_an_axis_of_one_pixel_reflects_to_it(method: str) -> None:
    def sampled(x: object, grid: object) -> object:
        return op.image.grid_sample(x, grid, method=method, padding_mode="reflection", align_corners=True)

    module = graph(sampled, x=(1, 2, 3, 1), grid=(1, 2, 3, 4))
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 1)).astype("float32")
    rows, columns = np.meshgrid([-1, 0, 1], [-3, -1, 0.3, 2], indexing="ij")
    grid = np.stack([columns, rows])[None].astype("float32")
    got = run(optimize(module, TARGET, CompileOptions()), x, grid)[0]
    np.testing.assert_allclose(got, np.repeat(x, 4, 3), rtol=1e-5)
