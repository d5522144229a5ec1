"""The ladder of a 3x3 convolution, by default 64 to 64 channels at 56x56: the first of ResNet's."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from tvm import relax, te, tirx

from benchmarks.ladder.rung import Array, Built, Rung, from_schedule, from_template
from relaxc.schedules.cpu.common.register_tile import divisors
from relaxc.schedules.hardware import Cpu

__all__ = ["flops", "rungs", "want"]

_LANES = 8
"""Columns at once without a blocked layout: 56 is a multiple of 8, not of 16."""


def flops(x: Array, w: Array) -> int:
    """Of the direct convolution; a multiply-add counts as two."""
    return int(2 * w.size * x.shape[2] * x.shape[3])


def want(x: Array, w: Array) -> Array:
    """What each rung must give."""
    import torch

    return np.asarray(torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).numpy())


def rungs(x: Array, w: Array, cpu: Cpu) -> list[Rung]:
    """The steps in order; channels must be multiples of a vector, the width of eight."""
    lanes, width = cpu.lanes(32), x.shape[3]
    per_row = width // _LANES
    channels = divisors(w.shape[0], max(1, (cpu.vector_registers - 2) // per_row))[-1]
    columns = divisors(width, (cpu.vector_registers - 4) // 2)[-1]

    def plain(name: str, what: str, *, vector: bool = False, parallel: bool = False, local: bool = False) -> Rung:
        def schedule(sch: Any) -> None:
            _schedule(sch, channels, vector=vector, parallel=parallel, local=local)

        return Rung(name, what, lambda: from_schedule(_plain(x, w), [x, w], schedule))

    return [
        Rung("naive", "seven loops", lambda: from_schedule(_plain(x, w), [x, w], lambda sch: None)),
        plain("tiled", f"{channels} channels of a row at once"),
        plain("vectorized", f"{_LANES} columns at once", vector=True),
        plain("parallel", "rows on all cores", vector=True, parallel=True),
        plain("unrolled", "the tile in registers", vector=True, parallel=True, local=True),
        Rung("packed", f"NCHW{lanes}c, weights OIHW{lanes}i{lanes}o", lambda: _blocked(x, w, lanes, columns)),
        Rung("template", "as relaxc compiles it, direct", lambda: _direct(x, w)),
        Rung("Winograd", "as relaxc compiles it", lambda: from_template(_convolution, [x], [w])),
    ]


def _convolution(x: Any, w: Any) -> Any:
    return relax.op.nn.conv2d(x, w, padding=1)


def _direct(x: Array, w: Array) -> Built:
    with mock.patch("relaxc.schedules.cpu.conv.winograd_plan.default", lambda *_: None):
        return from_template(_convolution, [x], [w])


def _padded(data: te.Tensor) -> te.Tensor:
    n, c, height, width, *lanes = data.shape

    def element(b: Any, i: Any, h: Any, w: Any, *v: Any) -> Any:
        inside = te.all(h >= 1, h <= height, w >= 1, w <= width)
        return te.if_then_else(inside, data[(b, i, h - 1, w - 1, *v)], tirx.const(0, "float32"))

    return te.compute((n, c, height + 2, width + 2, *lanes), element, name="pad")


def _plain(x: Array, w: Array) -> list[te.Tensor]:
    data, weight = te.placeholder(x.shape, name="X"), te.placeholder(w.shape, name="W")
    source = _padded(data)
    i, r, q = (te.reduce_axis((0, extent), name=name) for extent, name in zip(w.shape[1:], "irq", strict=True))
    made = te.compute(
        (x.shape[0], w.shape[0], *x.shape[2:]),
        lambda n, o, h, v: te.sum(source[n, i, h + r, v + q] * weight[o, i, r, q], axis=[i, r, q]),
        name="C",
    )
    return [data, weight, made]


def _schedule(sch: Any, channels: int, *, vector: bool, parallel: bool, local: bool) -> None:
    """for channels, h: for i, r, q: for o of the channels, w: C += X * W"""
    n, o, h, w, i, r, q = sch.get_loops("C")
    block, o = sch.split(o, [None, channels])
    sch.reorder(n, block, h, i, r, q, o, w)
    lane = None
    if vector:
        w, lane = sch.split(w, [None, _LANES])
        sch.vectorize(lane)
        sch.vectorize(sch.split(sch.get_loops("pad")[-1], [None, 2])[1])
    if local:
        written = sch.cache_write("C", 0, "local")
        sch.reverse_compute_at(written, h, preserve_unit_loops=True)
        *_, channel, _, column = sch.get_loops(written)
        column, written_lane = sch.split(column, [None, _LANES])
        sch.vectorize(written_lane)
        for loop in (o, w, channel, column):
            sch.unroll(loop)
    if parallel:
        sch.parallel(sch.fuse(n, block, h))
        sch.parallel(sch.fuse(*sch.get_loops("pad")[:3]))
    if vector:
        sch.decompose_reduction("C", i)
        if not local:
            sch.vectorize(sch.get_loops("C_init")[-1])


def _blocked(x: Array, w: Array, lanes: int, columns: int) -> Built:
    """`C[n, o, h, w, ov] += X[n, i, h + r, w + q, iv] * W[o, i, r, q, iv, ov]`, two blocks of o in registers."""
    outputs, inputs, *kernel = w.shape
    packed_x = x.reshape(x.shape[0], -1, lanes, *x.shape[2:]).transpose(0, 1, 3, 4, 2)
    packed_w = w.reshape(outputs // lanes, lanes, inputs // lanes, lanes, *kernel).transpose(0, 2, 4, 5, 3, 1)
    arrays = [np.ascontiguousarray(packed_x), np.ascontiguousarray(packed_w)]
    data, weight = (te.placeholder(array.shape, name=name) for array, name in zip(arrays, "XW", strict=True))
    source = _padded(data)
    extents = (inputs // lanes, *kernel, lanes)
    i, r, q, v = (te.reduce_axis((0, extent), name=name) for extent, name in zip(extents, "irqv", strict=True))
    made = te.compute(
        (x.shape[0], outputs // lanes, *x.shape[2:], lanes),
        lambda n, o, h, c, ov: te.sum(source[n, i, h + r, c + q, v] * weight[o, i, r, q, v, ov], axis=[i, r, q, v]),
        name="C",
    )

    def plain(array: Array) -> Array:
        return array.transpose(0, 1, 4, 2, 3).reshape(x.shape[0], outputs, *x.shape[2:])

    return from_schedule([data, weight, made], arrays, lambda sch: _blocked_schedule(sch, columns), plain)


def _blocked_schedule(sch: Any, columns: int) -> None:
    n, o, h, w, lane, i, r, q, v = sch.get_loops("C")
    o, channels = sch.split(o, [None, 2])
    w, tile = sch.split(w, [None, columns])
    sch.reorder(n, h, o, w, i, r, q, v, tile, channels, lane)
    written = sch.cache_write("C", 0, "local")
    sch.reverse_compute_at(written, w, preserve_unit_loops=True)
    _, _, _, _, _, written_channel, _, written_tile, written_lane = sch.get_loops(written)
    for loop in (channels, tile, written_channel, written_tile):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.vectorize(written_lane)
    sch.vectorize(sch.get_loops("pad")[-1])
    sch.parallel(sch.fuse(n, h))
    sch.parallel(sch.fuse(*sch.get_loops("pad")[:3]))
    sch.decompose_reduction("C", i)
