"""Winograd's minimal filtering for 3x3 convolutions of stride 1 on blocked layouts: F(2x2, 3x3) and F(4x4, 3x3).

A tile of m x m outputs is `A^T [(G g G^T) * (B^T d B)] A` of the kernel g and its (m+2) x (m+2) pixels d: (m+2)^2
products instead of 9 m^2, which over channels are as many matrix products. The matrices are those of Cook and Toom,
which evaluate polynomials at some points and infinity.

The points decide the error: |error| <= `amplification(m)` * n eps * max |d| * sum |g|, where the direct method has 1:
16 for m = 2, 175 for m = 4, and 860 with the usual points 0, 1, -1, 2, -2. That is the worst case; on random data the
root mean square error is 0.7 (m = 2) and 2 (m = 4) times that of the direct sum in order, within 2e-6 of the result's
own. What is infinite or NaN spreads over its tile. Sources: Lavin and Gray, 'Fast algorithms for convolutional neural
networks' (2016); Barabasz, Anderson, Soodhalter and Gregg, 'Error analysis and improving the accuracy of Winograd
convolution for deep neural networks' (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from tvm import te, tirx

from relaxc.schedules.ir.types import Expr
from relaxc.schedules.operators import Conv2d
from relaxc.schedules.plan import PLAN, Plan

__all__ = ["KERNEL", "POINTS", "conv2d", "matrices", "transform_weight"]

Array = np.ndarray[Any, Any]
Matrix = tuple[tuple[Fraction, ...], ...]

KERNEL = 3
POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}
"""The finite points by m: 0 and pairs, whose rows share their even and odd parts. Those of m = 4 are of the least error
among all pairs of eighths up to 2, found by search; their powers are exact in float32."""

_CHANNELS = 64
"""Input channels of weights that are transformed at once: their float64 results fit into L2."""


@cache
def matrices(size: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return `A^T` (m x m+2), `G` (m+2 x 3) and `B^T` (m+2 x m+2) of F(m, 3), exact."""
    points = POINTS[size]
    kernel, data = [], []
    for point in points:
        others = [other for other in points if other != point]
        scale = sum(c * point**k for k, c in enumerate(_polynomial(others)))
        kernel.append(tuple(point**k / scale for k in range(KERNEL)))
        data.append((*_polynomial(others), Fraction(0)))
    kernel.append((*[Fraction(0)] * (KERNEL - 1), Fraction(1)))
    data.append(_polynomial(points))
    result = [(*(point**i for point in points), Fraction(i == size - 1)) for i in range(size)]
    return tuple(result), tuple(kernel), tuple(data)


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the product of (x - root), the constant first."""
    coefficients = [Fraction(1)]
    for root in roots:
        low, high = [root * c for c in coefficients] + [Fraction(0)], [Fraction(0), *coefficients]
        coefficients = [a - b for a, b in zip(high, low, strict=True)]
    return tuple(coefficients)


def _array(matrix: Matrix) -> Array:
    return np.array([[float(element) for element in row] for row in matrix])


def transform_weight(weight: Array, size: int, lanes: int, vectors: int) -> Array:
    """Turn `OIHW` into `U[O/t, m+2, m+2, I, t]`, t = `vectors * lanes`, in float64, with zeros past the channels.

    A panel at a time, of few input channels: float64 stays in the cache, and the products lie as the result does.
    """
    kernel, width = _array(matrices(size)[1]), vectors * lanes
    out, into = weight.shape[:2]
    alpha = size + 2
    result = np.zeros((-(-out // width), alpha, alpha, into + -into % lanes, width), weight.dtype)
    for panel, kernels in zip(result, np.split(weight, range(width, out, width)), strict=True):
        for first in range(0, into, _CHANNELS):
            taps = kernels[:, first : first + _CHANNELS].transpose(2, 3, 1, 0).astype(np.float64)  # y, x, I, t
            channels, columns = taps.shape[2:]
            lines = kernel @ taps.reshape(*taps.shape[:2], -1)
            full = (kernel @ lines.reshape(len(lines), -1)).reshape(alpha, alpha, channels, columns)
            panel[:, :, first : first + channels, :columns] = full
    return result


def conv2d(data: te.Tensor, weight: te.Tensor, *, plan: Plan) -> te.Tensor:
    """Return the 3x3 convolution of a zero-padded `NCHW[v]c` image with `U[O/t, m+2, m+2, I, t]`, as `NCHW[v]c`.

    The tiles of all images are one axis of the plan's padded tiles; those past the last repeat it and are dropped.
    """
    op: Conv2d = plan.operator  # type: ignore[assignment]  # plans of this template are of convolutions
    size, padded = plan.parameters["size"], plan.parameters["padded"]
    batch, in_blocks, height, width, lanes = (int(extent) for extent in data.shape)
    panels, alpha, _, _, panel = (int(extent) for extent in weight.shape)
    vectors, dtype = panel // lanes, str(data.dtype)
    top, left, _, _ = op.padding
    out_h, out_w = op.result
    down, across = -(-out_h // size), -(-out_w // size)
    tiles = batch * down * across
    result, _, transform = matrices(size)

    def pixel(p: Expr, i: Expr, y: Expr, x: Expr, v: Expr) -> Expr:
        p = p if padded == tiles else te.min(p, tiles - 1)
        h, w = p // across % down * size + (y - top), p % across * size + (x - left)
        inside = te.all(h >= 0, h < height, w >= 0, w < width)
        return te.if_then_else(inside, data[p // (down * across), i, h, w, v], tirx.const(0, dtype))

    lines = te.compute(
        (padded, in_blocks, alpha, alpha, lanes),
        lambda p, i, a, x, v: _row(transform, a, [pixel(p, i, k, x, v) for k in range(alpha)]),
        name="winograd_rows",
    )
    image = te.compute(
        (in_blocks, alpha, alpha, padded, lanes),
        lambda i, a, b, p, v: _row(transform, b, [lines[p, i, a, k, v] for k in range(alpha)]),
        name="winograd_data",
    )
    own_blocks, group_blocks = in_blocks // op.groups, panels * vectors // op.groups
    i, iv = te.reduce_axis((0, own_blocks), name="i"), te.reduce_axis((0, lanes), name="iv")

    def product(a: Expr, b: Expr, p: Expr, o: Expr, v: Expr) -> Expr:
        factor = weight[o // vectors, a, b, i * lanes + iv, o % vectors * lanes + v]
        block = i if op.groups == 1 else o // group_blocks * own_blocks + i
        return te.sum(image[block, a, b, p, iv] * factor, axis=[i, iv])

    shape = (alpha, alpha, padded, panels * vectors, lanes)
    sums = te.compute(shape, product, name="winograd", attrs={PLAN: plan.to_json()})
    products = te.compute(sums.shape, lambda *index: sums[index], name="winograd_products")
    columns = te.compute(
        (padded, panels * vectors, size, alpha, lanes),
        lambda p, o, y, b, v: _row(result, y, [products[k, b, p, o, v] for k in range(alpha)]),
        name="winograd_columns",
    )
    outputs = te.compute(
        (padded, panels * vectors, size, size, lanes),
        lambda p, o, y, x, v: _row(result, x, [columns[p, o, y, k, v] for k in range(alpha)]),
        name="winograd_tiles",
    )

    def crop(n: Expr, o: Expr, h: Expr, w: Expr, v: Expr) -> Expr:
        return outputs[(n * down + h // size) * across + w // size, o, h % size, w % size, v]

    return te.compute((batch, panels * vectors, out_h, out_w, lanes), crop, name="crop")


def _row(matrix: Matrix, index: Expr, values: Sequence[Expr]) -> Expr:
    """`sum over k of matrix[index, k] * values[k]`, written so that equal parts of rows are equal expressions."""
    split = _even_and_odd if len(matrix) == len(values) else _pairs
    rows = [split(row, values) for row in matrix]
    chosen = rows[-1]
    for i in reversed(range(len(rows) - 1)):
        chosen = tirx.Select(index == i, rows[i], chosen)
    return chosen


def _even_and_odd(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """A row of B^T: those of the points p and -p are the sum and the difference of an even and an odd part."""
    nonzero = [k for k in reversed(range(len(row))) if row[k]]
    even, odd = [k for k in nonzero if k % 2 == 0], [k for k in nonzero if k % 2]
    if not even or not odd:
        return _sum([_times(row[k], values[k]) for k in nonzero])
    sign = 1 if row[odd[0]] > 0 else -1
    parts = _sum([_times(row[k], values[k]) for k in even]), _sum([_times(sign * row[k], values[k]) for k in odd])
    return parts[0] + parts[1] if sign > 0 else parts[0] - parts[1]


def _pairs(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """A row of A^T: it takes the products at p and -p (neighbours) by their sum or by their difference."""
    terms = [_times(row[0], values[0])] if row[0] else []
    for k in range(1, len(row) - 1, 2):
        both = values[k] + values[k + 1] if row[k] == row[k + 1] else values[k] - values[k + 1]
        terms.append(_times(row[k], both))
    if row[-1]:
        terms.append(values[-1])
    return _sum(terms)


def _sum(terms: Sequence[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _times(factor: Fraction, value: Expr) -> Expr:
    return value if factor == 1 else value * float(factor)
