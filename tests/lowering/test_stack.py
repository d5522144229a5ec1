"""Tiles of constant size stay out of the workspace pool."""
# mypy: ignore-errors

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm


def built(elements: int):
    @T.prim_func(s_tir=True)
    def sums(a: T.Buffer((elements,), "float32"), b: T.Buffer((elements,), "float32")):
        tile = T.sblock_alloc_buffer((elements,), "float32", scope="local")
        for i in T.serial(elements):
            with T.sblock("fill"):
                at = T.axis.spatial(elements, i)
                tile[at] = a[at] * 2.0
        for i in T.serial(elements):
            with T.sblock("drain"):
                at = T.axis.spatial(elements, i)
                b[at] = tile[elements - 1 - at] + a[at]

    pipeline.register()
    func = sums.with_attr("tirx.is_scheduled", True)
    return tirx.build(tvm.IRModule({"main": func}), to_tvm(resolve("x86-64-v3")), pipeline="relaxc")


@pytest.mark.parametrize(("elements", "pooled"), [(28 * 16, False), (4096, False), (4097, True)])
def test_a_tile_up_to_16_kib_is_not_in_the_pool(elements: int, pooled: bool) -> None:
    module = built(elements)
    code = module.inspect_source("ll") if module.kind == "llvm" else module.imports[0].inspect_source("ll")
    assert ("call ptr %" in code and "AllocWorkspace" in code) == pooled
