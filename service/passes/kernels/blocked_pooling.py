"""Tensor expressions of pooling on `NCHW[v]c`, in the stages that its template schedules."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import te, topi

__all__ = ["pool_images", "pool_windows"]


def pool_windows(
    data: te.Tensor,
    *,
    kind: str,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    count_include_pad: bool = False,
) -> te.Tensor:
    """`C[n, c, h, w, v]`: the maximum (`kind` max) or mean (avg) of a window of A.

    Padding is never a maximum; in a mean it counts as zeros, or with `count_include_pad` False not at all.
    """
    batch, blocks, height, width, lanes = data.shape
    out = [
        (int(size) + sum(pads) - (k - 1) * d - 1) // s + 1
        for size, pads, k, d, s in zip(
            (height, width), (padding[::2], padding[1::2]), kernel, dilation, strides, strict=True
        )
    ]
    lowest = te.min_value(data.dtype)
    source = _padded(data, padding, lowest if kind == "max" else 0.0)
    taps = [te.reduce_axis((0, size), name=name) for size, name in zip(kernel, "rq", strict=True)]
    reduce: Any = te.max if kind == "max" else te.sum

    def element(n: Any, c: Any, h: Any, w: Any, v: Any) -> Any:
        y, x = (o * s + t * d for o, s, t, d in zip((h, w), strides, taps, dilation, strict=True))
        return reduce(source[n, c, y, x, v], axis=taps)

    shape = (batch, blocks, *out, lanes)
    found = te.compute(shape, element, name="pool2d")
    if kind == "max":
        return te.compute(shape, lambda *index: found[index], name="written")

    def mean(n: Any, c: Any, h: Any, w: Any, v: Any) -> Any:
        sides = [(h, 0, int(height)), (w, 1, int(width))]
        counts = [_taps_inside(o, size, kernel[a], strides[a], dilation[a], padding[a]) for o, a, size in sides]
        if count_include_pad or not any(padding):
            return found[n, c, h, w, v] / float(prod(kernel))
        return found[n, c, h, w, v] / (counts[0] * counts[1]).astype(data.dtype)

    return te.compute(shape, mean, name="mean")


def _padded(data: te.Tensor, padding: tuple[int, int, int, int], value: Any) -> te.Tensor:
    if not any(padding):
        return data
    top, left, bottom, right = padding
    return topi.nn.pad(data, (0, 0, top, left, 0), (0, 0, bottom, right, 0), value, name="pad")


def _taps_inside(out: Any, size: int, kernel: int, stride: int, dilation: int, before: int) -> Any:
    """How many taps of the window of element `out` are in the image, along one axis; at least one."""
    first = out * stride - before
    skipped = te.max((dilation - 1 - first) // dilation, 0)
    inside = te.min((size - first + dilation - 1) // dilation, kernel)
    return te.max(inside - skipped, 1)


def pool_images(data: te.Tensor, *, kind: str, strips: int) -> te.Tensor:
    """`C[n, c, 0, 0, v]`: the maximum or mean over all of h and w: of each row, of each of the `strips`, and of these.

    `strips` divides the height.
    """
    batch, blocks, height, width, lanes = data.shape
    reduce: Any = te.max if kind == "max" else te.sum
    high = int(height) // strips
    s, y, w = (te.reduce_axis((0, size), name=name) for size, name in ((strips, "s"), (high, "y"), (width, "w")))

    def row(n: Any, c: Any, strip: Any, y: Any, v: Any) -> Any:
        return reduce(data[n, c, strip * high + y, w, v], axis=w)

    rows = te.compute((batch, blocks, strips, high, lanes), row, name="pool_rows")
    parts = te.compute(
        (batch, blocks, strips, lanes), lambda n, c, s, v: reduce(rows[n, c, s, y, v], axis=y), name="pool_strips"
    )
    image = te.compute((batch, blocks, lanes), lambda n, c, v: reduce(parts[n, c, s, v], axis=s), name="pool_image")
    scale = float(int(height) * int(width)) if kind == "avg" else 1.0
    return te.compute((batch, blocks, 1, 1, lanes), lambda n, c, y, x, v: image[n, c, v] / scale, name="pooled")
