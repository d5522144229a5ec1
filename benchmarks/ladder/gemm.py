"""The ladder of `C[m, n] = sum over k of A[m, k] * B[k, n]`, by default 128 x 768 x 3072: a layer of BERT."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te

from benchmarks.ladder.rung import Array, Rung, from_schedule, from_template
from relaxc.schedules.cpu.common.register_tile import divisors
from relaxc.schedules.hardware import Cpu

__all__ = ["flops", "rungs", "want"]

VECTORS = 4
"""Vectors in a row of the register tile."""
_K_BLOCK = 64


def flops(m: int, k: int, n: int) -> int:
    """A multiply-add counts as two."""
    return 2 * m * k * n


def want(a: Array, b: Array) -> Array:
    """What each rung must give."""
    return a @ b


def rungs(a: Array, b: Array, cpu: Cpu) -> list[Rung]:
    """The steps in order; n must be a multiple of four vectors."""
    lanes = cpu.lanes(32)
    width = VECTORS * lanes
    rows = divisors(a.shape[0], (cpu.vector_registers - 1 - VECTORS) // VECTORS)[-1]
    panels = np.ascontiguousarray(b.reshape(b.shape[0], -1, width).transpose(1, 0, 2))

    def plain(name: str, what: str, *, vector: bool = False, parallel: bool = False, local: bool = False) -> Rung:
        def schedule(sch: Any) -> None:
            _schedule(sch, rows, width, lanes, vector=vector, parallel=parallel, local=local)

        return Rung(name, what, lambda: from_schedule(_plain(a, b), [a, b], schedule))

    def packed() -> Any:
        def schedule(sch: Any) -> None:
            _schedule(sch, rows, width, lanes, vector=True, parallel=True, local=True)

        return from_schedule(_packed(a, panels), [a, panels], schedule)

    return [
        Rung("naive", "three loops", lambda: from_schedule(_plain(a, b), [a, b], lambda sch: None)),
        plain("tiled", f"blocks of {rows} x {width} x {_K_BLOCK}"),
        plain("vectorized", f"{lanes} columns at once", vector=True),
        plain("parallel", "blocks of columns on all cores", vector=True, parallel=True),
        plain("unrolled", "the block in registers", vector=True, parallel=True, local=True),
        Rung("packed", f"B in panels of {width} columns", packed),
        Rung("template", "as relaxc compiles it", lambda: from_template(relax.op.matmul, [a], [b])),
    ]


def _plain(a: Array, b: Array) -> list[te.Tensor]:
    left, right = te.placeholder(a.shape, name="A"), te.placeholder(b.shape, name="B")
    k = te.reduce_axis((0, a.shape[1]), name="k")
    made = te.compute((a.shape[0], b.shape[1]), lambda m, n: te.sum(left[m, k] * right[k, n], axis=k), name="C")
    return [left, right, made]


def _packed(a: Array, panels: Array) -> list[te.Tensor]:
    left, right = te.placeholder(a.shape, name="A"), te.placeholder(panels.shape, name="P")
    count, depth, width = panels.shape
    k = te.reduce_axis((0, depth), name="k")
    made = te.compute(
        (a.shape[0], count * width),
        lambda m, n: te.sum(left[m, k] * right[n // width, k, n % width], axis=k),
        name="C",
    )
    return [left, right, made]


def _schedule(sch: Any, rows: int, width: int, lanes: int, *, vector: bool, parallel: bool, local: bool) -> None:
    """for block of n, block of m: [for block of k]: for k: for m, n of the block: C += A * B

    The columns of B are the outer loop: they, and all of A, stay in L2 meanwhile.
    """
    m, n, k = sch.get_loops("C")
    task, row = sch.split(m, [None, rows])
    panel, column = sch.split(n, [None, width])
    if local:
        _in_registers(sch, (task, panel), (row, column), k, lanes)
        return
    block, k = sch.split(k, [None, _K_BLOCK])
    sch.reorder(panel, task, block, k, row, column)
    if vector:
        column, lane = sch.split(column, [None, lanes])
        sch.vectorize(lane)
    if parallel:
        sch.parallel(panel)
    if vector or parallel:
        sch.decompose_reduction("C", block)
        if vector:
            _vectorize_init(sch, lanes)


def _vectorize_init(sch: Any, lanes: int) -> None:
    *_, column = sch.get_loops("C_init")
    if int(sch.get(column).extent) > lanes:
        _, column = sch.split(column, [None, lanes])
    sch.vectorize(column)


def _in_registers(sch: Any, outer: tuple[Any, Any], tile: tuple[Any, Any], k: Any, lanes: int) -> None:
    (task, panel), (row, column) = outer, tile
    vector, lane = sch.split(column, [None, lanes])
    sch.reorder(panel, task, k, row, vector, lane)
    written = sch.cache_write("C", 0, "local")
    sch.reverse_compute_at(written, task, preserve_unit_loops=True)
    *_, written_row, written_column = sch.get_loops(written)
    written_vector, written_lane = sch.split(written_column, [None, lanes])
    for loop in (row, vector, written_row, written_vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.vectorize(written_lane)
    sch.parallel(panel)
    sch.decompose_reduction("C", k)
