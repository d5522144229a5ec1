"""Axes that the data decides: the program reads them, and sees its tensor with the sizes on each side of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node
from relaxc.service.frontend.onnx.ops.common import relax_dim, reshaped
from relaxc.service.frontend.onnx.reading import computed, vector

__all__ = ["ONE", "ZERO", "chosen", "gathered", "missing", "squeezed", "unsqueezed", "with_one_between"]

ONE = tirx.const(1, "int64")
ZERO = tirx.const(0, "int64")


def chosen(axes: Sequence[Any], given: Sequence[Any], axis: int, rank: int, otherwise: Any) -> Any:
    """Return the expression of what is given for an axis, where `axes` tell which of the `rank` each is for."""
    result = otherwise
    for each, value in zip(axes, given, strict=True):
        result = tirx.Select(_is(each, axis, rank), value, result)
    return result


def _is(given: Any, axis: int, rank: int) -> Any:
    return tirx.Or(given == axis, given == axis - rank)


def missing(axes: te.Tensor, count: int, rank: int) -> Any:
    """Return minus the number of axes that are not there."""
    return sum((tirx.And(axes[k] >= -rank, axes[k] < rank).astype("int64") for k in range(count)), ZERO) - count


def _flags(axes: te.Tensor, count: int, rank: int) -> list[Any]:
    """For each axis 1 where it is one of `axes`, else 0."""
    return [chosen([axes[k] for k in range(count)], [ONE] * count, axis, rank, ZERO) for axis in range(rank)]


def _others(flags: Sequence[Any], sizes: Sequence[Any], count: int) -> list[Any]:
    """The sizes of the `count` axes whose flag is 0, in their order."""
    found = [ZERO] * count
    before = ZERO
    for flag, size in zip(flags, sizes, strict=True):
        own = 1 - flag
        found = [each + own * size * (before == place).astype("int64") for place, each in enumerate(found)]
        before = before + own
    return found


def _sizes(
    node: Node, index: int, rank: int, function: Callable[[list[Any], Sequence[Any]], list[Any]], *, twice: bool = False
) -> list[Any]:
    """Return the sizes that `function` computes of the flags of axes and the first input's sizes. The program stops at
    an axis that is not there, or is named twice where it may not be.
    """
    axes, count = vector(node, index)

    def sizes(axes: te.Tensor, *own: Any) -> list[Any]:
        flags = _flags(axes, count, rank)
        return [*function(flags, own), missing(axes, count, rank) if twice else sum(flags, ZERO) - count]

    return computed(node, sizes, axes, *map(relax_dim, node.shape(0)))[:-1]


def gathered(node: Node, index: int, *, keep: bool) -> tuple[Any, list[Any]]:
    """Return the first input as a matrix whose columns are the elements of the axes that input `index` names, and the
    shape of a reduction over these: with a size of 1 for each of them, or without them.
    """
    rank = node.rank(0)
    left = 0 if keep else rank - vector(node, index)[1]

    def sizes(flags: list[Any], own: Sequence[Any]) -> list[Any]:
        kept = [tirx.Select(flag == 1, ONE, size) for flag, size in zip(flags, own, strict=True)]
        taken = [tirx.Select(flag == 1, size, ONE) for flag, size in zip(flags, own, strict=True)]
        return [*kept, *taken, *_behind(kept), *_behind(taken), *_others(flags, own, left)]

    found = _sizes(node, index, rank, sizes, twice=keep)
    kept, taken = found[:rank], found[rank : 2 * rank]
    # With all products known the kernel has no quotient of a quotient, which TVM simplifies for minutes.
    rows, columns = found[2 * rank : 3 * rank + 1], found[3 * rank + 1 : 4 * rank + 2]

    def kernel(x: te.Tensor, *sizes: Any) -> te.Tensor:
        kept, taken, rows, columns = (
            sizes[:rank],
            sizes[rank : 2 * rank],
            sizes[2 * rank : 3 * rank + 1],
            sizes[3 * rank + 1 :],
        )

        def element(row: Any, column: Any) -> Any:
            places = (
                tirx.floormod(tirx.floordiv(row, rows[axis + 1]), kept[axis])
                + tirx.floormod(tirx.floordiv(column, columns[axis + 1]), taken[axis])
                for axis in range(rank)
            )
            return x(*places)

        return te.compute([rows[0], columns[0]], element, name="gathered")

    made = node.te(kernel, node.tensor(0), *kept, *taken, *rows, *columns, primfunc_name_hint="gathered")
    return made, kept if keep else found[4 * rank + 2 :]


def _behind(sizes: Sequence[Any]) -> list[Any]:
    """The product of all sizes, of all but the first, and so on to 1, which is that of none."""
    return [onnx_dims.product(list(sizes[place:])) if place < len(sizes) else ONE for place in range(len(sizes) + 1)]


def with_one_between(node: Node, index: int, function: Callable[[Any, int], Any]) -> Any:
    """Return what `function` of a tensor and an axis, which keeps the shape, gives along the axis that input `index`
    names.
    """

    def sizes(flags: list[Any], own: Sequence[Any]) -> list[Any]:
        before, between, after, is_behind = ONE, ZERO, ONE, ZERO
        for flag, size in zip(flags, own, strict=True):
            before = before * tirx.Select(is_behind + flag == 0, size, ONE)
            between = between + flag * size
            after = after * tirx.Select(is_behind == 1, size, ONE)
            is_behind = is_behind + flag
        return [before, between, after]

    found = _sizes(node, index, node.rank(0), sizes)
    return reshaped(node, node.emit(function(reshaped(node, node.tensor(0), found), 1)), node.shape(0))


def squeezed(node: Node, index: int) -> Any:
    """Return the first input without the axes that input `index` names, whose size is 1."""
    left = node.rank(0) - vector(node, index)[1]
    found = _sizes(node, index, node.rank(0), lambda flags, own: _others(flags, own, left))
    return reshaped(node, node.tensor(0), found)


def unsqueezed(node: Node, index: int) -> Any:
    """Return the first input with a new axis of size 1 at each of the places that input `index` names."""

    def sizes(flags: list[Any], own: Sequence[Any]) -> list[Any]:
        found, before = [], ZERO
        for flag in flags:
            size = ONE
            for place, each in enumerate(own):
                size = tirx.Select(tirx.And(flag == 0, before == place), each, size)
            found.append(size)
            before = before + 1 - flag
        return found

    rank = node.rank(0) + vector(node, index)[1]
    return reshaped(node, node.tensor(0), _sizes(node, index, rank, sizes))
