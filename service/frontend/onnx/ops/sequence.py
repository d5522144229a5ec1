"""Sequences of tensors inside a graph. Their lengths are known at import, so a sequence is a Python tuple."""

from __future__ import annotations

from typing import Any

from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.values import Known

__all__ = ["Sequence"]


class Sequence(tuple[Any, ...]):
    """The values of a sequence; a class of its own, since a converter's tuple means several outputs."""


def _items(node: Node, index: int) -> tuple[Any, ...]:
    if not isinstance(node.inputs[index], Sequence):
        raise Refused("a sequence that is not built in the graph")
    return tuple(node.inputs[index])


def _place(node: Node, index: int, items: tuple[Any, ...], places: int) -> int:
    """A position of the `places` there are, counted from the end of the sequence when it is negative."""
    size = len(items)
    place = int(node.scalar(index, "position"))
    if not -size <= place < places:
        raise Refused(f"position {place} in a sequence of {size}")
    return place + size if place < 0 else place


@op("SequenceEmpty")
def _empty(node: Node) -> Any:
    return [Sequence()]


@op("SequenceConstruct")
def _construct(node: Node) -> Any:
    return [Sequence(node.inputs)]


@op("SequenceInsert")
def _insert(node: Node) -> Any:
    items = _items(node, 0)
    place = _place(node, 2, items, len(items) + 1) if node.has(2) else len(items)
    return [Sequence((*items[:place], node.inputs[1], *items[place:]))]


@op("SequenceErase")
def _erase(node: Node) -> Any:
    items = _items(node, 0)
    place = _place(node, 1, items, len(items)) if node.has(1) else len(items) - 1
    return [Sequence((*items[:place], *items[place + 1 :]))]


@op("SequenceAt")
def _at(node: Node) -> Any:
    items = _items(node, 0)
    return [items[_place(node, 1, items, len(items))]]


@op("SequenceLength")
def _length(node: Node) -> Any:
    import numpy as np

    return Known(np.array(len(_items(node, 0)), "int64"), "int64")


@op("SplitToSequence")
def _split(node: Node) -> Any:
    """Parts of the given sizes, or of one size, or with no size single slices, whose axis goes unless `keepdims`."""
    shape = node.shape(0)
    axis = node.attr("axis", 0) % len(shape)
    size = shape[axis]
    if not isinstance(size, int):
        raise Refused("an axis of symbolic size")
    sizes = node.ints(1, "split") if node.has(1) else [1] * size
    if node.has(1) and node.rank(1) == 0:
        sizes = [min(sizes[0], size - start) for start in range(0, size, sizes[0])]
    x, start, parts = node.tensor(0), 0, []
    for part in sizes:
        piece = node.emit(relax.op.strided_slice(x, [axis], [start], [start + part], [1], assume_inbound=True))
        if not node.has(1) and not node.attr("keepdims", 1):
            piece = node.emit(relax.op.squeeze(piece, [axis]))
        parts.append(piece)
        start += part
    return [Sequence(parts)]


@op("ConcatFromSequence")
def _concat(node: Node) -> Any:
    tensors = [node.materialize(item) for item in _items(node, 0)]
    axis = node.attr("axis")
    if not tensors:
        raise Refused("an empty sequence")
    if node.attr("new_axis", 0):
        rank = len(node.shape_of(tensors[0])) + 1
        tensors = [node.emit(relax.op.expand_dims(tensor, axis % rank)) for tensor in tensors]
        axis %= rank
    return relax.op.concat(tensors, axis % len(node.shape_of(tensors[0])))
