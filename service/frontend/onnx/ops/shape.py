"""Operators that move elements without computing: Reshape, Transpose, Slice, Split, Concat, Pad."""

from __future__ import annotations

import itertools
from typing import Any

from tvm import relax, te, tirx, topi

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.axes import squeezed, unsqueezed
from relaxc.service.frontend.onnx.ops.common import permuted, relax_dim, require_shape, reshaped
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.ops.shape_by_data import (
    MODES,
    computed_extents,
    computed_pad,
    computed_shape,
    computed_slice,
    repeated,
)
from relaxc.service.frontend.onnx.scope import FAR
from relaxc.service.frontend.onnx.values import slice_of


@op("Reshape")
def _reshape(node: Node) -> Any:
    """0 keeps a size (unless `allowzero`), and one -1 takes what is left."""
    shape = node.shape(0)
    if node.attr("shape") is None and not node.is_known(1):
        return reshaped(node, node.tensor(0), computed_shape(node, shape))
    wanted = list(node.attr("shape")) if node.attr("shape") is not None else node.dims(1, "the shape")
    if not node.attr("allowzero", 0):
        wanted = [shape[axis] if _is(dim, 0) else dim for axis, dim in enumerate(wanted)]
    open_axes = [axis for axis, dim in enumerate(wanted) if _is(dim, -1)]
    if len(open_axes) > 1:
        raise Refused("a shape with more than one -1")
    for axis in open_axes:
        wanted[axis] = onnx_dims.quotient(shape, wanted[:axis] + wanted[axis + 1 :], node.scope)
    return reshaped(node, node.tensor(0), wanted)


def _is(dim: Any, number: int) -> bool:
    return isinstance(dim, int) and dim == number


@op("Flatten")
def _flatten(node: Node) -> Any:
    shape, axis = node.shape(0), node.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    rows, columns = onnx_dims.product(shape[:axis]), onnx_dims.product(shape[axis:])
    return reshaped(node, node.tensor(0), [rows, columns])


@op("Squeeze")
def _squeeze(node: Node) -> Any:
    if node.has(1) and not node.is_known(1):
        return squeezed(node, 1)
    shape, axes = node.shape(0), node.axes(1)
    gone = _without_axes(node, shape) if axes is None else {axis % len(shape) for axis in axes}
    if any(isinstance(shape[axis], int) and shape[axis] != 1 for axis in gone):
        raise Refused(f"axes {sorted(gone)} of the shape {shape}, not all of which have size 1")
    wanted = [1 if axis in gone else dim for axis, dim in enumerate(shape)]
    x = require_shape(node, node.tensor(0), shape, wanted)
    return reshaped(node, x, [dim for axis, dim in enumerate(shape) if axis not in gone])


def _without_axes(node: Node, shape: list[Any]) -> set[int]:
    """The axes of size 1. A symbolic size is taken for another one, or for 1 where the file's outputs say so."""
    gone = set()
    for axis, dim in enumerate(shape):
        if _is(dim, 1) or (not isinstance(dim, int) and node.scope.chosen(f"{node.name}, axis {axis}")):
            gone.add(axis)
        elif not isinstance(dim, int):
            node.require(dim, "!=", 1, f"without axes leaves axis {axis} out where its size {{left}} is 1")
    return gone


@op("Unsqueeze")
def _unsqueeze(node: Node) -> Any:
    if node.has(1) and not node.is_known(1):
        return unsqueezed(node, 1)
    shape, axes = node.shape(0), node.axes(1) or ()
    rank = len(shape) + len(axes)
    new, rest = {axis % rank for axis in axes}, iter(shape)
    return reshaped(node, node.tensor(0), [1 if axis in new else next(rest) for axis in range(rank)])


@op("Transpose")
def _transpose(node: Node) -> Any:
    rank = node.rank(0)
    return permuted(node, node.tensor(0), list(node.attr("perm", range(rank - 1, -1, -1))))


@op("Concat")
def _concat(node: Node) -> Any:
    axis = node.attr("axis", 1) % node.rank(0)
    shapes = [node.shape(index) for index in range(len(node.inputs))]
    # The first static size on each axis is what the others, where symbolic, must be at run time.
    wanted = [next((s[i] for s in shapes if isinstance(s[i], int)), shapes[0][i]) for i in range(len(shapes[0]))]
    tensors = []
    for index, shape in enumerate(shapes):
        target = [dim if i == axis else want for i, (dim, want) in enumerate(zip(shape, wanted, strict=True))]
        tensors.append(require_shape(node, node.tensor(index), shape, target))
    # What has no elements adds none, and is a loop of no steps to TVM.
    tensors = [tensor for tensor, shape in zip(tensors, shapes, strict=True) if not _is(shape[axis], 0)] or tensors[:1]
    return tensors[0] if len(tensors) == 1 else relax.op.concat(tensors, axis)


@op("Split")
def _split(node: Node) -> Any:
    shape = node.shape(0)
    axis = node.attr("axis", 0) % len(shape)
    sizes = node.split_sizes(shape[axis])
    starts = [onnx_dims.simplify(sum(sizes[:index]), node.scope) for index in range(len(sizes) + 1)]
    x = node.tensor(0)
    told = [onnx_dims.told(size) for size in sizes]
    node.require(shape[axis], "==", starts[-1], f"splits axis {axis}, of size {{left}}, into {told}")
    if len(sizes) == 1:
        return [x]
    return [
        relax.op.strided_slice(x, [axis], [relax_dim(begin)], [relax_dim(end)], [1], assume_inbound=True)
        for begin, end in itertools.pairwise(starts)
    ]


@op("Slice")
def _slice(node: Node) -> Any:
    x, shape = node.tensor(0), node.shape(0)
    if any(node.has(index) and not node.is_known(index) for index in range(1, 5)):
        return computed_slice(node, x)
    for start, end, axis, step in zip(*node.slice_arguments(), strict=True):
        x = _slice_axis(node, x, axis, shape[axis], start, end, step)
    return x


def _slice_axis(node: Node, x: Any, axis: int, size: Any, start: Any, end: Any, step: int) -> Any:
    if step == 0:
        raise Refused("a step of 0")
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        places = range(size)[slice_of(start, end, step, size)]
        if len(places) == size and step == 1:
            return x
        if step > 0:
            stop = max(places.stop, places.start)
            return node.emit(relax.op.strided_slice(x, [axis], [places.start], [stop], [step], assume_inbound=True))
        return (
            node.emit(relax.op.take(x, relax.const(list(places), "int64"), axis, mode="clip")) if places else _refuse()
        )
    if step < 0:
        last = _is(start, -1) or (isinstance(start, int) and start >= _TO_THE_END)
        if step == -1 and last and isinstance(end, int) and end <= -_TO_THE_END:
            _ends(node, min(-end, start if start > 0 else -end), size)
            return node.emit(relax.op.flip(x, axis))
        raise Refused("a negative step along an axis of symbolic size")
    begin, stop = (_clamp(node, bound, size) for bound in (start, end))
    if not node.scope.analyzer.can_prove(relax_dim(stop) >= relax_dim(begin)):
        stop = onnx_dims.simplify(tirx.max(relax_dim(stop), relax_dim(begin)), node.scope)  # from behind its end: empty
    if _is(begin, 0) and onnx_dims.same(stop, size, node.scope) and step == 1:
        return x
    arguments = [[relax_dim(begin)], [relax_dim(stop)], [step]]
    return node.emit(relax.op.strided_slice(x, [axis], *arguments, assume_inbound=True))


_TO_THE_END = 10**9
"""The least constant that exporters write for the end of an axis; TensorFlow's has nine zeros."""


def _ends(node: Node, bound: int, size: Any) -> None:
    """Have an axis be no longer than a constant that stands for its end."""
    if bound < FAR and not node.scope.limit(size, bound):
        node.require(bound, ">=", size, "goes up to {left}, for its end, along an axis of size {right}")


def _refuse() -> Any:
    raise Refused("an empty result")


def _clamp(node: Node, bound: Any, size: Any) -> Any:
    """A start or end as a place in 0..size.

    The first `seq` rows of a table of 512 put a bound on `seq`, which the signature states and a run is held to.
    Where that cannot be said of one name, the run decides by min and max.
    """
    analyzer = node.scope.analyzer
    if isinstance(bound, int) and bound >= _TO_THE_END and not isinstance(size, int):
        _ends(node, bound, size)
        return size
    bound, size = (tirx.const(v, "int64") if isinstance(v, int) else v for v in (bound, size))
    if analyzer.can_prove(bound < 0):
        bound = analyzer.simplify(bound + size)
    elif not analyzer.can_prove(bound >= 0):
        node.require(bound, ">=", 0, "has a start or end of {left}, which is from the end where it is negative")
    if not analyzer.can_prove(bound >= 0):
        bound = tirx.max(bound, tirx.const(0, "int64"))
    if analyzer.can_prove(bound >= size):
        bound = size
    elif onnx_dims.is_static(size) and node.scope.limit(bound, int(size)):
        pass
    elif not analyzer.can_prove(bound <= size):
        bound = tirx.min(bound, size)
    return onnx_dims.simplify(bound, node.scope)


@op("Expand")
def _expand(node: Node) -> Any:
    """Broadcasting in both directions: a 1 in the wanted shape keeps the tensor's size."""
    x, shape = node.tensor(0), node.shape(0)
    wanted = node.dims(1, "the shape") if node.is_known(1) else computed_extents(node, shape)
    rank = max(len(shape), len(wanted))
    shape = [1] * (rank - len(shape)) + shape
    wanted = [1] * (rank - len(wanted)) + wanted
    result = [have if _is(want, 1) else want for have, want in zip(shape, wanted, strict=True)]
    if len(shape) > node.rank(0):
        x = reshaped(node, x, shape)
    x = require_shape(node, x, shape, [h if _is(h, 1) else r for h, r in zip(shape, result, strict=True)])
    if all(onnx_dims.same(have, want, node.scope) for have, want in zip(shape, result, strict=True)):
        return x
    return relax.op.broadcast_to(x, relax.ShapeExpr([relax_dim(dim) for dim in result]))


@op("Tile")
def _tile(node: Node) -> Any:
    """Each axis as (repeats, size), broadcast, and the two joined."""
    x, shape = node.tensor(0), node.shape(0)
    repeats = node.dims(1, "repeats")
    if all(_is(repeat, 1) for repeat in repeats):
        return x
    apart = [dim for size in shape for dim in (1, size)]
    spread = [dim for repeat, size in zip(repeats, shape, strict=True) for dim in (repeat, size)]
    joined = [onnx_dims.simplify(r * s, node.scope) for r, s in zip(repeats, shape, strict=True)]
    if any(_is(size, 0) for size in joined):
        return relax.op.zeros(relax.ShapeExpr(list(map(relax_dim, joined))), node.dtype(0))
    wide = node.emit(relax.op.broadcast_to(reshaped(node, x, apart), relax.ShapeExpr(list(map(relax_dim, spread)))))
    return reshaped(node, wide, joined)


@op("Pad")
def _pad(node: Node) -> Any:
    x, shape, mode = node.tensor(0), node.shape(0), node.attr("mode", "constant")
    if any(node.has(index) and not node.is_known(index) for index in (1, 2, 3)):
        return computed_pad(node, x, mode)
    before, after = _widths(
        node, node.ints(1, "pads") if node.has(1) else list(node.attr("pads", node.attr("paddings", ())))
    )
    x = _crop(node, x, before, after)
    before, after = [max(width, 0) for width in before], [max(width, 0) for width in after]
    if not any(before + after):
        return x
    if mode == "constant":
        return node.te(topi.nn.pad, x, before, after, _pad_value(node))
    for axis, size in enumerate(shape):
        if before[axis] or after[axis]:
            x = _pad_by_index(node, x, axis, size, before[axis], after[axis], mode)
    return x


def _widths(node: Node, pads: list[Any]) -> tuple[list[Any], list[Any]]:
    rank = node.rank(0)
    axes = [axis % rank for axis in node.ints(3, "axes")] if node.has(3) else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[place + len(axes)]
    return before, after


def _pad_value(node: Node) -> Any:
    value = node.scalar(2, "the padding value") if node.has(2) else node.attr("value", 0)
    return tirx.const(value, node.dtype(0))


def _crop(node: Node, x: Any, before: list[int], after: list[int]) -> Any:
    """Negative widths cut."""
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low < 0 or high < 0:
            size = node.shape_of(x)[axis]
            gone = max(-low, 0) + max(-high, 0)
            node.require(size, ">=", gone, f"cuts {{right}} from axis {axis}, of size {{left}}")
            x = _slice_axis(node, x, axis, size, max(-low, 0), min(high, 0) or (1 << 62), 1)
    return x


def _pad_by_index(node: Node, x: Any, axis: int, size: Any, before: int, after: int, mode: str) -> Any:
    """Padding that repeats elements is a gather whose places are known, or follow from a symbolic size."""
    import numpy as np

    if mode not in MODES:
        raise Refused(f"mode={mode}")
    size = node.shape_of(x)[axis]
    if isinstance(size, int):
        places = np.pad(np.arange(size), (before, after), mode)  # type: ignore[call-overload]
        return node.emit(relax.op.take(x, relax.const(places, "int64"), axis, mode="clip"))
    least = {"reflect": max(before, after) + 1, "wrap": max(before, after), "edge": 1}[mode]
    node.require(
        size, ">=", least, f"pads axis {axis}, of size {{left}}, by its own elements, of which it takes {{right}}"
    )

    def kernel(data: te.Tensor) -> te.Tensor:
        count = data.shape[axis]

        def element(*index: Any) -> Any:
            place = repeated(index[axis] - before, count, mode)
            return data(*index[:axis], place, *index[axis + 1 :])

        shape = [*data.shape[:axis], count + before + after, *data.shape[axis + 1 :]]
        return te.compute(shape, element, name="pad")

    return node.te(kernel, x)


@op("DepthToSpace")
def _depth_to_space(node: Node) -> Any:
    batch, channels, height, width = node.shape(0)
    block = node.attr("blocksize")
    rest = onnx_dims.simplify(channels // (block * block), node.scope)
    first = node.attr("mode", "DCR") == "DCR"
    apart = [batch, block, block, rest, height, width] if first else [batch, rest, block, block, height, width]
    x = reshaped(node, node.tensor(0), apart)
    x = permuted(node, x, [0, 3, 4, 1, 5, 2] if first else [0, 1, 4, 2, 5, 3])
    return reshaped(node, x, [batch, rest, height * block, width * block])


@op("SpaceToDepth")
def _space_to_depth(node: Node) -> Any:
    batch, channels, height, width = node.shape(0)
    block = node.attr("blocksize")
    for size in (height, width):
        node.require(size % block, "==", 0, f"has blocks of {block} in [{onnx_dims.told(size)}]")
    high, wide = (onnx_dims.simplify(size // block, node.scope) for size in (height, width))
    x = reshaped(node, node.tensor(0), [batch, channels, high, block, wide, block])
    x = permuted(node, x, [0, 3, 5, 1, 2, 4] if node.attr("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4])
    return reshaped(node, x, [batch, channels * block * block, high, wide])


@op("ReverseSequence")
def _reverse_sequence(node: Node) -> Any:
    """Along `time_axis`, the first `sequence_lens[b]` elements of each batch entry are reversed."""
    x = node.tensor(0)
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    shape = node.shape(0)
    node.require(node.shape(1)[0], "==", shape[batch], f"has {{left}} lengths for axis {batch}, of size {{right}}")
    if node.is_known(1) and not node.inputs[1].symbolic:
        longest = int(node.inputs[1].array.max(initial=0))
        node.require(shape[time], ">=", longest, f"reverses {{right}} of axis {time}, of size {{left}}")
    # A longer sequence than the tensor is, which only the data decides, is taken for as long.
    most = node.materialize(node.known([shape[time]]))
    lengths = node.emit(relax.op.minimum(node.emit(relax.op.astype(node.tensor(1), "int64")), most))
    return node.te(topi.reverse_sequence, x, lengths, time, batch)
