"""Pooling windows: MaxPool, AveragePool, LpPool."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx, topi

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import cast, full_precision, is_float, scalar
from relaxc.service.frontend.onnx.ops.conv import spatial_padding
from relaxc.service.frontend.onnx.ops.reduce import lowest
from relaxc.service.frontend.onnx.ops.registry import op


class _Window:
    """The window of a pooling node: kernel, strides, dilations, pads, and the output's sizes."""

    def __init__(self, node: Node) -> None:
        self.kernel = list(node.attr("kernel_shape"))
        rank = len(self.kernel)
        self.strides = list(node.attr("strides", [1] * rank))
        self.dilations = list(node.attr("dilations", [1] * rank))
        self.ceil = bool(node.attr("ceil_mode", 0))
        sizes = node.shape(0)[2:]
        pads = spatial_padding(node, sizes, self.kernel, self.strides, self.dilations)
        self.begins, self.ends = pads[:rank], pads[rank:]
        self.reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        self.out = [self._output(axis, size) for axis, size in enumerate(sizes)]
        for axis, (size, reach) in enumerate(zip(sizes, self.reach, strict=True)):
            padded = size + self.begins[axis] + self.ends[axis]
            if not self.ceil:  # by which a window that is longer than its image has one place
                node.require(padded, ">=", reach, f"has a window of {{right}} on axis {axis + 2}, padded to {{left}}")

    def _output(self, axis: int, size: Any) -> Any:
        """The number of windows; with `ceil_mode`, none that starts in the padding behind the input."""
        free = size + self.begins[axis] + self.ends[axis] - self.reach[axis]
        stride = self.strides[axis]
        if not self.ceil or not isinstance(size, int):
            if self.ceil and stride > 1:
                raise Refused("ceil_mode along an axis of symbolic size")
            return free // stride + 1
        count = -(-free // stride) + 1
        return count - 1 if (count - 1) * stride >= size + self.begins[axis] else count

    @property
    def floor_like(self) -> bool:
        """Whether ceil_mode changes nothing."""
        return not self.ceil

    def extra(self, node: Node) -> list[int]:
        """Return how far the last windows of ceil_mode reach over the padding."""
        sizes = node.shape(0)[2:]
        return [
            max((out - 1) * stride + reach - (size + begin + end), 0) if self.ceil and isinstance(size, int) else 0
            for out, stride, reach, size, begin, end in zip(
                self.out, self.strides, self.reach, sizes, self.begins, self.ends, strict=True
            )
        ]

    def places(self, out: tuple[Any, ...], taps: tuple[Any, ...]) -> list[Any]:
        """Return where tap `k` of window `o` lies, in coordinates of the padded input."""
        return [o * s + k * d for o, s, k, d in zip(out, self.strides, taps, self.dilations, strict=True)]


_MAX = te.comm_reducer(lambda a, b: tirx.max(a, b), lowest, name="max")


@op("MaxPool")
def _max_pool(node: Node) -> Any:
    window, x, rank = _Window(node), node.tensor(0), node.rank(0) - 2
    if node.output_count > 1:
        return _max_pool_with_indices(node, window)
    if rank == 2 and window.floor_like and is_float(node.dtype(0)):
        pads = window.begins + window.ends
        return relax.op.nn.max_pool2d(x, window.kernel, window.strides, pads, window.dilations)
    return _reduce_windows(node, window, x, _MAX, lowest(node.dtype(0)))


def _reduce_windows(node: Node, window: _Window, x: Any, reducer: Any, filler: Any) -> Any:
    """`Y[n, c, o] = reduce_k P[n, c, o·stride + k·dilation]`, P being x padded with `filler`."""
    rank = len(window.kernel)
    before = [0, 0, *window.begins]
    after = [0, 0, *(end + more for end, more in zip(window.ends, window.extra(node), strict=True))]

    def kernel(data: te.Tensor) -> te.Tensor:
        padded = topi.nn.pad(data, before, after, filler) if any(before + after) else data
        taps = [te.reduce_axis((0, size), name=f"k{axis}") for axis, size in enumerate(window.kernel)]
        shape = (*data.shape[:2], *_output_dims(data, window))
        return te.compute(
            shape,
            lambda n, c, *o: reducer(padded(n, c, *window.places(o, tuple(taps))), axis=taps),
            name="pool",
            tag="pool",
        )

    assert rank == len(window.out)
    return node.te(kernel, x, primfunc_name_hint="pool")


def _output_dims(data: te.Tensor, window: _Window) -> list[Any]:
    dims = []
    for axis, size in enumerate(data.shape[2:]):
        if isinstance(window.out[axis], int):
            dims.append(window.out[axis])
        else:
            free = size + window.begins[axis] + window.ends[axis] - window.reach[axis]
            dims.append(free // window.strides[axis] + 1)
    return dims


@op("AveragePool")
def _average_pool(node: Node) -> Any:
    """The mean of the window's elements; padding counts only with `count_include_pad`, what ceil_mode adds never."""
    window, rank, count_pads = _Window(node), node.rank(0) - 2, bool(node.attr("count_include_pad", 0))
    plain = window.floor_like and all(d == 1 for d in window.dilations)
    if rank == 2 and plain:
        pads = window.begins + window.ends
        return full_precision(
            node,
            lambda x: relax.op.nn.avg_pool2d(x, window.kernel, window.strides, pads, count_include_pad=count_pads),
            node.tensor(0),
        )
    return full_precision(node, lambda x: _mean_of_windows(node, window, x, count_pads), node.tensor(0))


def _mean_of_windows(node: Node, window: _Window, x: Any, count_pads: bool) -> Any:
    total = _reduce_windows(node, window, x, te.sum, tirx.const(0, str(x.ty.dtype.dtype)))

    def kernel(data: te.Tensor, sums: te.Tensor) -> te.Tensor:
        def element(n: Any, c: Any, *out: Any) -> Any:
            count: Any = tirx.const(1, "int64")
            for axis, o in enumerate(out):
                count = count * _taps_inside(window, axis, o, data.shape[2 + axis], count_pads)
            return sums(n, c, *out) / count.astype(sums.dtype)

        return te.compute(sums.shape, element, name="mean")

    return node.te(kernel, x, total, primfunc_name_hint="pool_mean")


def _taps_inside(window: _Window, axis: int, place: Any, size: Any, count_pads: bool) -> Any:
    """How many taps of the window at `place` lie in the input, or in the padded input."""
    low = 0 if count_pads else window.begins[axis]
    high = window.begins[axis] + size + (window.ends[axis] if count_pads else 0)
    start, dilation = place * window.strides[axis], window.dilations[axis]
    first = tirx.max(tirx.floordiv(low - start + dilation - 1, dilation), tirx.const(0, "int64"))
    last = tirx.min(tirx.floordiv(high - 1 - start, dilation), tirx.const(window.kernel[axis] - 1, "int64"))
    return tirx.max(last - first + 1, tirx.const(1, "int64"))


def _max_pool_with_indices(node: Node, window: _Window) -> Any:
    """The maximum and its place in the whole flattened tensor (column-major places with `storage_order`)."""
    x, dtype = node.tensor(0), node.dtype(0)
    sizes = node.static_shape(0, "the input of a MaxPool with indices")[2:]
    column_major = bool(node.attr("storage_order", 0))
    batch_channels = node.static_shape(0, "the input")[:2]
    plane = math.prod(sizes)

    def better(a: Any, b: Any) -> Any:
        take_left = tirx.Or(a[1] > b[1], tirx.And(a[1] == b[1], a[0] <= b[0]))
        return tirx.Select(take_left, a[0], b[0]), tirx.Select(take_left, a[1], b[1])

    reducer = te.comm_reducer(better, lambda i, v: (tirx.const((1 << 62), i), lowest(dtype)), name="max_place")

    def kernel(data: te.Tensor) -> list[te.Tensor]:
        taps = [te.reduce_axis((0, size), name=f"k{axis}") for axis, size in enumerate(window.kernel)]

        def element(n: Any, c: Any, *out: Any) -> Any:
            places = [p - b for p, b in zip(window.places(out, tuple(taps)), window.begins, strict=True)]
            inside = tirx.all(*(tirx.And(p >= 0, p < s) for p, s in zip(places, sizes, strict=True)))
            safe = [tirx.max(tirx.min(p, s - 1), 0) for p, s in zip(places, sizes, strict=True)]
            flat: Any = tirx.const(0, "int64")
            for p, s in zip(*((safe[::-1], sizes[::-1]) if column_major else (safe, sizes)), strict=True):
                flat = flat * s + p
            flat = (n * batch_channels[1] + c) * plane + flat
            value = tirx.if_then_else(inside, data(n, c, *safe), lowest(dtype))
            return reducer((flat, value), axis=taps)

        return list(te.compute((*batch_channels, *window.out), element, name="pool"))

    both = node.te(kernel, x, primfunc_name_hint="pool_places")
    places, values = (node.emit(relax.TupleGetItem(both, i)) for i in (0, 1))
    return values, cast(places, "int64")


@op("LpPool")
def _lp_pool(node: Node) -> Any:
    """`(Σ |x|^p)^(1/p)` of each window."""
    window, order = _Window(node), float(node.attr("p", 2))

    def norm(x: Any) -> Any:
        size = node.emit(relax.op.abs(x))
        powered = node.emit(relax.op.multiply(x, x) if order == 2 else relax.op.power(size, scalar(order, x)))
        total = _reduce_windows(node, window, powered, te.sum, tirx.const(0, str(x.ty.dtype.dtype)))
        return relax.op.sqrt(total) if order == 2 else relax.op.power(total, scalar(1 / order, x))

    return full_precision(node, norm, node.tensor(0))
