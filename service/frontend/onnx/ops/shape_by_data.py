"""What the data decides of Reshape, Expand, Slice and Pad, read as the program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.axes import ONE, ZERO, chosen, missing
from relaxc.service.frontend.onnx.ops.common import relax_dim
from relaxc.service.frontend.onnx.reading import computed, vector
from relaxc.service.frontend.onnx.tensor_expression import one_of
from relaxc.service.frontend.onnx.values import ENDS

__all__ = ["MODES", "computed_extents", "computed_pad", "computed_shape", "computed_slice", "repeated"]

MODES = ("reflect", "edge", "wrap")
"""How Pad repeats elements."""


def computed_shape(node: Node, shape: list[Any]) -> list[Any]:
    """Return the sizes of a shape that is computed from data, its 0 and -1 resolved."""
    given, count = vector(node, 1)
    keeps = not node.attr("allowzero", 0)
    kept = shape[:count] + [0] * (count - len(shape))

    def resolved(wanted: te.Tensor, total: Any, *own: Any) -> list[Any]:
        sizes = [tirx.Select(wanted[i] == 0, own[i], wanted[i]) if keeps else wanted[i] for i in range(count)]
        others = ONE
        for size in sizes:
            others = others * tirx.Select(size == -1, ONE, size)
        left = tirx.floordiv(total, tirx.max(others, ONE))
        return [tirx.Select(size == -1, left, size) for size in sizes]

    sizes = computed(node, resolved, given, *(relax_dim(size) for size in (onnx_dims.product(shape), *kept)))
    node.require(onnx_dims.product(sizes), "==", onnx_dims.product(shape), "makes {left} elements of {right}")
    return sizes


def computed_extents(node: Node, shape: list[Any]) -> list[Any]:
    """Return the shape that an Expand gives, computed from data: a 1 in it keeps the tensor's size."""
    given, count = vector(node, 1)
    have = [1] * (count - len(shape)) + shape[max(len(shape) - count, 0) :]

    def sizes(wanted: te.Tensor, *own: Any) -> list[Any]:
        return [tirx.Select(wanted[i] == 1, own[i], wanted[i]) for i in range(count)]

    return computed(node, sizes, given, *map(relax_dim, have))


def _each(node: Node, index: int, otherwise: list[int]) -> tuple[Any, int]:
    """An input of numbers as int64, known or not, and how many; others where it is absent."""
    if node.has(index):
        return vector(node, index)
    return node.materialize(node.known(otherwise)), len(otherwise)


def computed_slice(node: Node, x: Any) -> Any:
    """Return a slice of whose starts, ends, axes and steps the data decides some: `y[j] = x[first + j * step]`."""
    rank, shape = node.rank(0), [relax_dim(dim) for dim in node.shape(0)]
    starts, count = vector(node, 1)
    given = [starts, vector(node, 2)[0], _each(node, 3, list(range(count)))[0], _each(node, 4, [1] * count)[0]]

    def places(start: te.Tensor, end: te.Tensor, axes: te.Tensor, steps: te.Tensor, *sizes: Any) -> list[Any]:
        def own(values: te.Tensor, axis: int, otherwise: Any) -> Any:
            return chosen([axes[k] for k in range(count)], [values[k] for k in range(count)], axis, rank, otherwise)

        firsts, lengths, strides = [], [], []
        for axis, size in enumerate(sizes):
            most = tirx.max(size, ONE)  # what is longer than the axis takes one element, as this does
            step = tirx.max(tirx.min(own(steps, axis, ONE), most), -most)
            end_of = own(end, axis, size)
            first, last = (tirx.Select(bound < 0, bound + size, bound) for bound in (own(start, axis, ZERO), end_of))
            ahead = [tirx.min(tirx.max(bound, ZERO), size) for bound in (first, last)]
            back = [tirx.min(tirx.max(first, ZERO), size - 1), tirx.min(tirx.max(last, ZERO - 1), size - 1)]
            back[1] = tirx.Select(tirx.any(*(end_of == each for each in ENDS)), ZERO - 1, back[1])
            forward = tirx.floordiv(tirx.max(ahead[1] - ahead[0], ZERO) + step - 1, tirx.max(step, ONE))
            backward = tirx.floordiv(tirx.max(back[0] - back[1], ZERO) - step - 1, tirx.max(-step, ONE))
            firsts.append(tirx.Select(step > 0, ahead[0], tirx.max(back[0], ZERO)))
            lengths.append(tirx.Select(step > 0, forward, tirx.Select(step < 0, backward, ZERO - 1)))
            strides.append(step)
        return [*lengths, missing(axes, count, rank), *firsts, *strides]

    numbers, lengths = _numbers(node, rank, places, *given, *shape)

    def kernel(data: te.Tensor, given: te.Tensor, *lengths: Any) -> te.Tensor:
        def element(*index: Any) -> Any:
            return data(
                *(given[rank + 1 + axis] + place * given[2 * rank + 1 + axis] for axis, place in enumerate(index))
            )

        return te.compute(lengths, element, name="slice")

    return node.te(kernel, x, numbers, *lengths)


def _numbers(node: Node, rank: int, function: Callable[..., list[Any]], *args: Any) -> tuple[Any, list[Any]]:
    """The numbers that `function` gives, and the first `rank` of them as sizes. The program stops where one of these,
    or the number behind them, is negative.
    """

    def kernel(*given: Any) -> Any:
        numbers = function(*given)
        return te.compute((len(numbers),), lambda at: one_of(at, numbers).astype("int64"), name="numbers")

    numbers = node.te(kernel, *args, primfunc_name_hint=function.__name__)
    return numbers, computed(node, lambda given: [given[place] for place in range(rank + 1)], numbers)[:-1]


def computed_pad(node: Node, x: Any, mode: str) -> Any:
    """Return a tensor padded by what the data decides: widths, of which negative ones cut, axes, or the filler."""
    if mode not in ("constant", *MODES):
        raise Refused(f"mode={mode}")
    rank, shape = node.rank(0), node.shape(0)
    pads, count = _each(node, 1, list(node.attr("pads", ())))
    count //= 2
    axes = _each(node, 3, list(range(count)))[0]
    filler = node.tensor(2) if node.has(2) else relax.const(node.attr("value", 0), node.dtype(0))

    def widths(pads: te.Tensor, axes: te.Tensor, *sizes: Any) -> list[Any]:
        def own(first: int, axis: int) -> Any:
            return chosen([axes[k] for k in range(count)], [pads[first + k] for k in range(count)], axis, rank, ZERO)

        before = [own(0, axis) for axis in range(rank)]
        after = [own(count, axis) for axis in range(rank)]
        lengths = [low + size + high for low, size, high in zip(before, sizes, after, strict=True)]
        cut = [tirx.max(-low, ZERO) for low in before]
        left = [size - low - tirx.max(-high, ZERO) for low, size, high in zip(cut, sizes, after, strict=True)]
        there = missing(axes, count, rank)
        for each in left if mode != "constant" else ():  # which repeats what the cuts leave
            there = tirx.min(there, each - 1)
        return [*lengths, there, *before, *cut, *left]

    sizes = [relax_dim(dim) for dim in shape]
    numbers, lengths = _numbers(node, rank, widths, pads, axes, *sizes)
    filler = node.emit(relax.op.reshape(filler, ()))

    def kernel(data: te.Tensor, given: te.Tensor, filler: te.Tensor, *lengths: Any) -> te.Tensor:
        def element(*index: Any) -> Any:
            places = [place - given[rank + 1 + axis] for axis, place in enumerate(index)]
            if mode != "constant":
                cut, left = ([given[first + axis] for axis in range(rank)] for first in (2 * rank + 1, 3 * rank + 1))
                apart = zip(places, cut, left, strict=True)
                return data(*(low + repeated(place - low, size, mode) for place, low, size in apart))
            inside = [
                cond for place, size in zip(places, data.shape, strict=True) for cond in (place >= 0, place < size)
            ]
            return tirx.if_then_else(tirx.all(*inside), data(*places), filler()) if inside else data()

        return te.compute(lengths, element, name="pad")

    return node.te(kernel, x, numbers, filler, *lengths)


def repeated(place: Any, count: Any, mode: str) -> Any:
    """Return the place in a vector of `count` that padding repeats at `place`, however far that is outside of it."""
    if mode == "edge":
        return tirx.max(tirx.min(place, count - 1), 0)
    if mode == "wrap":
        return tirx.floormod(place, count)
    period = tirx.max(2 * count - 2, ONE)
    turned = tirx.floormod(place, period)
    return tirx.min(turned, period - turned)
