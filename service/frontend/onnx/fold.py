"""Operators evaluated while importing: those that move known elements here, arithmetic in `onnx_arithmetic`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relaxc.service.codes import FORMATS
from relaxc.service.frontend.onnx.arithmetic import ARITHMETIC
from relaxc.service.frontend.onnx.values import MAX_FOLDED, Undecided, slice_of

if TYPE_CHECKING:
    from relaxc.service.frontend.onnx.node import Node

__all__ = ["FOLDS", "cast_known"]


def _static(array: Any) -> list[int]:
    """The numbers in an array. Raise Undecided when one is symbolic."""
    values = array.reshape(-1).tolist()
    if not all(isinstance(value, int) for value in values):
        raise Undecided
    return values  # type: ignore[no-any-return]


def _squeeze(node: Node) -> Any:
    array = node.arrays[0]
    axes = node.axes(1)
    return array.squeeze() if axes is None else array.squeeze(tuple(axes))


def _unsqueeze(node: Node) -> Any:
    import numpy as np

    return np.expand_dims(node.arrays[0], tuple(node.axes(1) or ()))


def _reshape(node: Node) -> Any:
    array = node.arrays[0]
    target = _static(node.arrays[1])
    if not node.attr("allowzero", 0):
        target = [array.shape[axis] if dim == 0 else dim for axis, dim in enumerate(target)]
    return array.reshape(target)


def _flatten(node: Node) -> Any:
    array, axis = node.arrays[0], node.attr("axis", 1)
    return array.reshape(math.prod(array.shape[:axis]), math.prod(array.shape[axis:]))


def _slice(node: Node) -> Any:
    array = node.arrays[0]
    starts, ends, axes, steps = node.slice_arguments()
    index = [slice(None)] * array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not all(isinstance(value, int) for value in (start, end, step)):
            raise Undecided
        index[axis] = slice_of(start, end, step, array.shape[axis])
    return array[tuple(index)]


def _concat(node: Node) -> Any:
    import numpy as np

    return np.concatenate([array for array in node.arrays if array is not None], node.attr("axis", 1))


def _gather(node: Node) -> Any:
    import numpy as np

    return np.take(
        node.arrays[0], np.array(_static(node.arrays[1]), "int64").reshape(node.arrays[1].shape), node.attr("axis", 0)
    )


def _expand(node: Node) -> Any:
    import numpy as np

    array = node.arrays[0]
    shape = np.broadcast_shapes(array.shape, tuple(_static(node.arrays[1])))
    _bound(shape)
    return np.broadcast_to(array, shape)


def _bound(shape: Any) -> None:
    if math.prod(shape) > MAX_FOLDED:
        raise Undecided


def _constant_of_shape(node: Node) -> Any:
    import numpy as np

    shape = tuple(_static(node.arrays[0]))
    _bound(shape)
    value = node.attr("value", np.zeros(1, "float32"))
    return np.full(shape, value.reshape(-1)[0], value.dtype)


def _range(node: Node) -> Any:
    import numpy as np

    if any(array.dtype == object for array in node.arrays):
        raise Undecided
    start, limit, delta = (array.reshape(()) for array in node.arrays[:3])
    if delta == 0:
        raise Undecided
    if start.dtype.kind in "iu":
        places = range(int(start), int(limit), int(delta))
        _bound((len(places),))
        return np.array(places, start.dtype)
    count = int(max(np.ceil(np.float64(limit - start) / delta), 0))
    _bound((count,))
    return (np.arange(count) * delta + start).astype(start.dtype)


_OF_SIZES = ("int64", "int32", "float32", "float64", "bool")


def _cast(node: Node) -> Any:
    dtype = node.attr_dtype("to")
    array = node.arrays[0]
    if array.dtype == object:
        # Sizes stay exact in these; a float of a size may only become an int again.
        if (node.known_dtype(0) == "bool") != (dtype == "bool") or dtype not in _OF_SIZES:
            raise Undecided
        return array
    return cast_known(node, array, dtype)


def cast_known(node: Node, array: Any, dtype: str) -> Any:
    """Return an array of numbers in another dtype. Raise Undecided where that has no such number: what it gives then is
    the kernel's to say.
    """
    import numpy as np

    kind = node.numpy_dtype(dtype)
    if array.dtype.kind not in "iub" and kind.kind in "iu":
        limits, whole = np.iinfo(kind), np.trunc(array.astype("float64"))
        if not ((whole >= limits.min) & (whole < limits.max + 1)).all():
            raise Undecided
    elif dtype in FORMATS and not _has_all(dtype, array.astype("float64")):
        raise Undecided
    return array.astype(FORMATS[str(array.dtype)].wide if str(array.dtype) in FORMATS else array.dtype).astype(kind)


def _has_all(dtype: str, numbers: Any) -> bool:
    """Whether a format has all of these numbers, rounded."""
    import ml_dtypes
    import numpy as np

    row = FORMATS[dtype]
    if not row.is_float:
        return bool(((np.trunc(numbers) >= row.low) & (np.trunc(numbers) <= row.high)).all())
    return row.has_zero and bool((abs(numbers) <= float(ml_dtypes.finfo(dtype).max)).all())


def _where(node: Node) -> Any:
    import numpy as np

    condition, left, right = node.arrays[:3]
    if condition.dtype == object:
        raise Undecided
    if left.dtype != right.dtype:
        left, right = left.astype(object), right.astype(object)
    return np.where(condition, left, right)


def _split(node: Node) -> Any:
    import numpy as np

    array = node.arrays[0]
    axis = node.attr("axis", 0)
    sizes = node.split_sizes(array.shape[axis])
    return np.split(array, np.cumsum(sizes[:-1]), axis)


FOLDS: dict[str, Callable[[Node], Any]] = {
    "Identity": lambda node: node.arrays[0],
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": lambda node: node.arrays[0].transpose(node.attr("perm", None)),
    "Slice": _slice,
    "Concat": _concat,
    "Gather": _gather,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Cast": _cast,
    "Where": _where,
    "Split": _split,
    **ARITHMETIC,
}
"""Operator → its result on `node.arrays`; raises Undecided where the sizes do not decide it."""
