"""Group norms of images in NHWC as TE: what `cuda.group_norm` reads again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import te, tirx

from relaxc.schedules.ir.types import Expr

__all__ = ["group_norm"]


def group_norm(image: te.Tensor, gamma: te.Tensor, beta: te.Tensor, *, groups: int, epsilon: float) -> te.Tensor:
    """Compute `(x - m) / sqrt(v + ε) · gamma + β` in fp32; m and v are of the pixels and the channels of a group."""
    images, height, width, channels = image.shape
    in_group = int(channels) // groups
    scale = tirx.const(float(np.float32(1 / (int(height) * int(width) * in_group))), "float32")

    def value(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        return image[n, y, x, c].astype("float32")

    def reduce(term: Callable[..., Expr], name: str) -> te.Tensor:
        y, x, c = (te.reduce_axis((0, size), axis) for size, axis in ((height, "y"), (width, "x"), (in_group, "c")))
        over = [y, x, c]
        return te.compute(
            (images, groups), lambda n, g: te.sum(term(n, g, y, x, g * in_group + c), axis=over), name=name
        )

    def centred(n: Expr, g: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        return value(n, y, x, c) - total[n, g] * scale

    def square(*at: Expr) -> Expr:
        return centred(*at) * centred(*at)

    total = reduce(lambda n, g, y, x, c: value(n, y, x, c), "group_norm_sum")
    squares = reduce(square, "group_norm_squares")
    rounded = tirx.const(float(np.float32(epsilon)), "float32")

    def result(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        g = c // in_group
        deviation = tirx.rsqrt(squares[n, g] * scale + rounded)
        return centred(n, g, y, x, c) * deviation * gamma[c].astype("float32") + beta[c].astype("float32")

    return te.compute(image.shape, result, name="group_norm")
