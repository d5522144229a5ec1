"""Vectors of GPU kernels lie at multiples of their size, whatever the shapes."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.ir import TensorLoad

from benchmarks.gpu.gemm_cases import Case, prim_func
from relaxc.schedules.ir import tir
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.apply import finish
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.lowering.vector_alignment import analyzer_of, is_multiple
from tests.schedules.cuda.sequential import scheduled_by

_SPEC = resolve("cuda-sm90")
_VECTORIZED = 1 + [each.info.name for each in pipeline._list()].index("tirx.VectorizeLoop")


def _lowered(func):
    """The PrimFunc with all that is vectorized as vectors."""
    named = finish(func, _SPEC, 2).with_attr("global_symbol", "main")
    bound = tirx.transform.BindTarget(to_tvm(_SPEC))(tvm.IRModule({"main": named}))
    return tvm.ir.transform.Sequential(pipeline._list()[:_VECTORIZED])(bound)["main"]


def _vectors(func):
    """Of each vector in memory its first element, and its lanes."""
    nodes = [*tir.collect(func.body, tirx.BufferStore), *tir.collect(func.body, TensorLoad)]
    ramps = [ramp for node in nodes for index in node.indices for ramp in tir.collect(index, tirx.Ramp)]
    return [(ramp.base, int(ramp.lanes)) for ramp in ramps if tir.as_int(ramp.stride) == 1]


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 71, 61, 540, "bfloat16", "float32", "bias"),
        Case(1, 51, 95, 15, "float16", "float16", "relu"),
        Case(3, 7, 193, 359, "float16", "float32", "none"),
        Case(2, 57, 17, 31, "float32", "float32", "bias_silu", n_major=True),
        Case(1, 331, 129, 76, "float16", "float16", "bias_residual", n_major=True),
        Case(2, 97, 126, 98, "bfloat16", "bfloat16", "bias"),
    ],
    ids=str,
)
def test_vectors_of_a_product_are_aligned(case):
    func = _lowered(scheduled_by("cuda.matmul", prim_func(case)))
    analyzer, vectors = analyzer_of(func), _vectors(func)
    assert vectors
    assert [base for base, lanes in vectors if not is_multiple(base, lanes, analyzer)] == []


def test_what_is_aligned_stays_vectors():
    """Rows of 540 in, of 61 out: copies into shared memory go on by two, the result does not."""
    func = _lowered(scheduled_by("cuda.matmul", prim_func(Case(1, 71, 61, 540, "bfloat16", "float32", "bias"))))
    loads = [load for load in tir.loads(func.body) if load.source.name.startswith(("x0", "x1")) and load.indices]
    inputs = [load for load in loads if load.source.scope() == "global"]
    assert inputs and any(tir.collect(load.indices[0], tirx.Ramp) for load in inputs)
    stores = [store for store in tir.collect(func.body, tirx.BufferStore) if store.buffer.scope() == "global"]
    assert stores and not any(tir.collect(store.indices[0], tirx.Ramp) for store in stores)
