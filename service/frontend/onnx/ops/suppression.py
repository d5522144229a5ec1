"""NonMaxSuppression: of boxes that overlap, those of the best scores, a class and an image at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from relaxc.service.frontend.onnx.node import Node
from relaxc.service.frontend.onnx.ops.common import cast, reshaped
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.reading import read

_LEAST = float("-inf")


@op("NonMaxSuppression")
def _non_max_suppression(node: Node) -> Any:
    """`[image, class, box]` of each that is kept, of a class the best first; how many is known at run time."""
    boxes, scores = (node.emit(cast(node.tensor(index), "float32")) for index in (0, 1))
    (images, classes, _), places = node.shape(1), node.shape(0)[1]
    node.require(places, "==", node.shape(1)[2], "has {left} boxes and {right} scores of a class")
    node.require(node.shape(0)[0], "==", images, "has boxes of {left} images and scores of {right}")
    most, overlap, least = (_number(node, index, *each) for index, each in enumerate(_OPERANDS, 2))
    count, rows = relax.TensorType([images, classes], "int64"), relax.TensorType([images, classes, places], "int64")
    kernel = node.builder.add_func(_select(bool(node.attr("center_point_box", 0))), "non_max_suppression")
    selected = node.emit(relax.call_tir(kernel, [boxes, scores, most, overlap, least], [rows, rows, count]))
    found, counts = (node.emit(relax.TupleGetItem(selected, index)) for index in (0, 2))
    (total,) = read(node, reshaped(node, node.emit(relax.op.sum(counts)), [1]), 1)
    return relax.call_tir(
        node.builder.add_func(_listed(), "list_boxes"), [found, counts], relax.TensorType([total, 3], "int64")
    )


_OPERANDS = ((0, "int64"), (0.0, "float32"), (_LEAST, "float32"))
"""What the number of boxes, the overlap and the least score are where they are not given."""


def _number(node: Node, index: int, default: float, dtype: str) -> Any:
    if not node.has(index):
        return relax.const([default], dtype)
    return reshaped(node, node.emit(cast(node.tensor(index), dtype)), [1])


def _side(boxes: Any, image: Any, box: Any, axis: int, center: bool) -> tuple[Any, Any]:
    """Where a box begins and ends along an axis."""
    one, other = boxes[image, box, axis], boxes[image, box, axis + 2]
    if center:
        half = other * tirx.const(0.5, "float32")
        return one - half, one + half
    return tirx.min(one, other), tirx.max(one, other)


def _overlap(boxes: Any, image: Any, box: Any, other: Any, *, center: bool) -> Any:
    """The area that two boxes share, over that of both; 0 where one has none."""
    shared, both = tirx.const(1.0, "float32"), [tirx.const(1.0, "float32")] * 2
    zero = tirx.const(0.0, "float32")
    for axis in (0, 1):
        sides = [_side(boxes, image, each, axis, center) for each in (box, other)]
        shared = shared * tirx.max(tirx.min(sides[0][1], sides[1][1]) - tirx.max(sides[0][0], sides[1][0]), zero)
        both = [area * tirx.max(end - begin, zero) for area, (begin, end) in zip(both, sides, strict=True)]
    union = both[0] + both[1] - shared
    exists = tirx.all(shared > zero, both[0] > zero, both[1] > zero, union > zero)
    return tirx.if_then_else(exists, shared / union, zero)


@cache
def _select(center: bool) -> tirx.PrimFunc:
    """`boxes, scores, most, overlap, least → kept, left, count`, where `left` is room to work in.

    What is over the least score is left; the best of it is kept, and what overlaps it goes, over and over. ONNX Runtime
    takes the first of equal scores.
    """

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def select(
        b: T.handle, s: T.handle, m: T.handle, o: T.handle, t: T.handle, k: T.handle, w: T.handle, c: T.handle
    ) -> None:
        images, classes, places = T.int64(), T.int64(), T.int64()
        boxes = T.match_buffer(b, (images, places, 4), "float32")
        scores = T.match_buffer(s, (images, classes, places), "float32")
        most = T.match_buffer(m, (1,), "int64")
        overlap, least = T.match_buffer(o, (1,), "float32"), T.match_buffer(t, (1,), "float32")
        kept = T.match_buffer(k, (images, classes, places), "int64")
        left = T.match_buffer(w, (images, classes, places), "int64")
        count = T.match_buffer(c, (images, classes), "int64")
        for i, j in T.grid(images, classes):
            with T.sblock("select"):
                image, label = T.axis.remap("SS", [i, j])
                T.reads(boxes[image, 0:places, 0:4], scores[image, label, 0:places], most[0], overlap[0], least[0])
                T.writes(kept[image, label, 0:places], left[image, label, 0:places], count[image, label])
                best = T.sblock_alloc_buffer((1,), "int64", scope="local")
                after = T.sblock_alloc_buffer((1,), "int64", scope="local")
                number = T.sblock_alloc_buffer((1,), "int64", scope="local")
                best[0] = T.int64(-1)
                number[0] = T.int64(0)
                for place in range(places):
                    if scores[image, label, place] > least[0]:
                        left[image, label, number[0]] = place
                        number[0] = number[0] + T.int64(1)
                        if best[0] < T.int64(0):
                            best[0] = place
                        if scores[image, label, place] > scores[image, label, best[0]]:
                            best[0] = place
                count[image, label] = T.int64(0)
                while best[0] >= T.int64(0) and count[image, label] < most[0]:
                    kept[image, label, count[image, label]] = best[0]
                    count[image, label] = count[image, label] + T.int64(1)
                    after[0] = T.int64(0)
                    for place in range(number[0]):
                        other = left[image, label, place]
                        apart = _overlap(boxes, image, best[0], other, center=center) <= overlap[0]
                        if other != best[0] and apart:
                            left[image, label, after[0]] = other
                            after[0] = after[0] + T.int64(1)
                    number[0] = after[0]
                    best[0] = T.int64(-1)
                    for place in range(number[0]):
                        if best[0] < T.int64(0):
                            best[0] = left[image, label, place]
                        if scores[image, label, left[image, label, place]] > scores[image, label, best[0]]:
                            best[0] = left[image, label, place]

    return select


@cache
def _listed() -> tirx.PrimFunc:
    """`kept, count → rows[n, 3]`, image by image and class by class."""

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def listed(k: T.handle, c: T.handle, r: T.handle) -> None:
        images, classes, places, n = T.int64(), T.int64(), T.int64(), T.int64()
        kept = T.match_buffer(k, (images, classes, places), "int64")
        count = T.match_buffer(c, (images, classes), "int64")
        rows = T.match_buffer(r, (n, 3), "int64")
        with T.sblock("listed"):
            T.reads(kept[0:images, 0:classes, 0:places], count[0:images, 0:classes])
            T.writes(rows[0:n, 0:3])
            row = T.sblock_alloc_buffer((1,), "int64", scope="local")
            row[0] = T.int64(0)
            for image, label in T.grid(images, classes):
                for place in range(count[image, label]):
                    if row[0] < n:
                        rows[row[0], 0] = image
                        rows[row[0], 1] = label
                        rows[row[0], 2] = kept[image, label, place]
                        row[0] = row[0] + T.int64(1)

    return listed
