"""What the layout passes ask about `NCHW` images, and the elementwise operators that keep a blocked form."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.passes.common.rewrite import dims_equal

__all__ = [
    "BINARY",
    "ZERO_KEEPING_UNARY",
    "channels_of",
    "count_reads",
    "elements_of_windows",
    "has_channels",
    "ints",
    "is_image",
    "is_pixel",
    "known",
    "pair",
    "same_batch",
    "sides",
]

ZERO_KEEPING_UNARY = frozenset(
    f"relax.{name}"
    for name in (
        *("abs", "clip", "erf", "negative", "sigmoid", "sqrt", "square", "tanh"),
        *("nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu"),
    )
)
"""Elementwise operators that are finite at zero, which is what lanes past the last channel hold, or a value made
from it: those lanes meet zero weights later, and only NaN and infinities would survive that."""

_IMAGES = frozenset(("float32", "bfloat16", "int32", "uint8", "int8"))

BINARY = frozenset(f"relax.{name}" for name in ("add", "maximum", "minimum", "multiply", "subtract"))


def is_image(expr: relax.Expr) -> bool:
    """Return whether it is a tensor of four dims, of float32 or of what narrow images are of."""
    return isinstance(expr.ty, relax.TensorType) and expr.ty.ndim == 4 and str(expr.ty.dtype) in _IMAGES


def has_channels(expr: relax.Expr) -> bool:
    """Return whether it is an image of so many channels, whatever else is known of it."""
    return is_image(expr) and isinstance(expr.ty.shape, relax.ShapeExpr) and channels_of(expr) >= 0


def known(dim: Any) -> int:
    """Return a size as operators have it: 0 where it is not known."""
    return int(getattr(dim, "value", 0))


def is_pixel(expr: relax.Expr) -> bool:
    """Return whether it is one value a channel."""
    return has_channels(expr) and all(known(dim) == 1 for dim in list(expr.ty.shape)[2:4])


def same_batch(expr: relax.Expr, other: relax.Expr) -> bool:
    """Return whether both have the same first dim."""
    return dims_equal(list(expr.ty.shape)[:1], list(other.ty.shape)[:1])


def count_reads(function: relax.Function) -> Counter[Any]:
    """Return how often each variable is an argument of a call, or part of a tuple."""
    found: Counter[Any] = Counter()

    def count(expr: relax.Expr) -> None:
        if isinstance(expr, (relax.Call, relax.Tuple)):
            found.update(expr.args if isinstance(expr, relax.Call) else expr.fields)

    relax.analysis.post_order_visit(function, count)
    return found


def channels_of(expr: relax.Expr) -> int:
    """Return the channels of an `NCHW` image; -1 where they are symbolic."""
    dim = list(expr.ty.shape)[1]
    return int(dim) if hasattr(dim, "value") else -1


def ints(values: Any, count: int) -> tuple[int, ...]:
    """Return `values` as `count` ints, repeated where there are fewer."""
    found = [int(value) for value in values]
    return tuple(found * (count // len(found)))


def pair(values: Any) -> tuple[int, int]:
    """Return one or two sizes as rows and columns."""
    rows, columns = ints(values, 2)
    return rows, columns


def sides(values: Any) -> tuple[int, int, int, int]:
    """Return one, two or four sizes of padding as top, left, bottom, right."""
    top, left, bottom, right = ints(values, 4)
    return top, left, bottom, right


def elements_of_windows(windows: Any, sizes: tuple[int, ...], out: tuple[int, ...]) -> Any:
    """Return how many elements of an image of `sizes` are in each of `out` windows, as an array of two dims."""
    lines = []
    for i, size in enumerate(sizes):
        first = np.arange(out[i])[:, None] * windows.strides[i] - windows.padding[i]
        at = first + np.arange(windows.kernel[i])[None] * windows.dilation[i]
        lines.append(((at >= 0) & (at < size)).sum(1))
    return np.outer(lines[0], lines[1]).astype(float)
