"""SizesAsShape: kernels of a range and of another size are one."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.passes.fuse.sizes_as_shape import SizesAsShape
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, graph, operators, run


def _positions_behind(cache: Any, x: Any, table: Any) -> Any:
    held = op.reshape(op.shape_to_tensor(relax.ShapeExpr([cache.ty.shape[0]])), ())
    return op.take(table, op.add(op.arange(0, x.ty.shape[0], 1, "int64"), held), 0)


def test_positions_behind_a_cache() -> None:
    module = graph(_positions_behind, cache=("m", 2), x=("n", 2), table=(9, 3))
    optimized = optimize(module, TARGET, CompileOptions())
    assert operators(optimized.module)[0].startswith("fused_arange_shape_to_tensor")
    table = np.random.default_rng(0).standard_normal((9, 3)).astype("float32")
    for held, rows in ((4, 3), (1, 8)):
        got = run(optimized, np.zeros((held, 2), "float32"), np.zeros((rows, 2), "float32"), table)[0]
        np.testing.assert_array_equal(got, table[held : held + rows])


def test_a_module_without_such_a_group_is_the_same() -> None:
    module = graph(lambda x: op.add(x, x), x=("n", 2))
    assert SizesAsShape()(module).same_as(module)
