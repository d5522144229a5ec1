"""Interpolation of images (NC…): TVM's resize where it samples as torch does, else weighted sums along each dim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter, is_prim
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op

Array = np.ndarray[Any, Any]
Kernel = Callable[[Array], Array]


def _exact(em: Emitter, x: Any, scales: Any) -> bool:
    """Whether torch's factors are the ratios of the sizes, by which TVM samples."""
    if scales is None:
        return True
    pairs = zip(em.shape(x)[2:], em.out_shape()[2:], scales, strict=True)
    return all(is_prim(size) or size * scale == length for size, length, scale in pairs)


def _resize(em: Emitter, x: Any, method: str, mode: str, rounding: str = "") -> Any:
    resized = op.image.resize2d(
        em.wide(x),
        tuple(em.out_shape()[2:]),
        method=method,
        coordinate_transformation_mode=mode,
        rounding_method=rounding,
        cubic_alpha=-0.75,
        layout="NCHW",
    )
    return em.cast(em(resized), em.out_dtype())


@converts("aten.upsample_bilinear2d.vec", "aten.upsample_bicubic2d.vec")
def _upsample(em: Emitter, x: Any, size: Any, align_corners: bool, scales: Sequence[float] | None = None) -> Any:
    cubic = "bicubic" in em.node.target.name()
    if align_corners or _exact(em, x, scales):
        return _resize(em, x, "cubic" if cubic else "linear", "align_corners" if align_corners else "half_pixel")
    return _weighted(em, x, scales, _cubic if cubic else _linear, 2 if cubic else 1, antialias=False)


@converts("aten._upsample_bilinear2d_aa.default", "aten._upsample_bicubic2d_aa.default")
def _upsample_aa(em: Emitter, x: Any, size: Any, align_corners: bool, *scales: float | None) -> Any:
    if align_corners:
        raise em.refuse("antialiasing with aligned corners")
    cubic = "bicubic" in em.node.target.name()
    given = None if None in scales or not scales else scales
    return _weighted(em, x, given, _cubic_aa if cubic else _linear, 2 if cubic else 1, antialias=True)


@converts("aten.upsample_nearest2d.vec")
def _nearest(em: Emitter, x: Any, size: Any, scales: Sequence[float] | None = None) -> Any:
    """The pixel at floor(i / scale)."""
    if _exact(em, x, scales):
        return _resize(em, x, "nearest_neighbor", "asymmetric", "floor")
    assert scales is not None
    for axis, scale in enumerate(scales, start=2):
        length, last = em.out_shape()[axis], em.static_shape(x, "resize")[axis] - 1
        place = np.floor(np.arange(length, dtype="float32") * np.float32(1 / scale)).astype("int64")
        x = em(op.take(x, em.const(np.minimum(place, last), "int64"), axis=axis, mode="clip"))
    return x


def _linear(distance: Array) -> Array:
    kernel: Array = np.maximum(1 - np.abs(distance), 0)
    return kernel


def _keys(distance: Array, a: float) -> Array:
    """The cubic convolution kernel (Keys 1981)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _cubic(distance: Array) -> Array:
    return _keys(distance, -0.75)


def _cubic_aa(distance: Array) -> Array:
    return _keys(distance, -0.5)


def _weighted(em: Emitter, x: Any, scales: Any, kernel: Kernel, support: int, *, antialias: bool) -> Any:
    """A matrix product along each image dim, with the matrix of torch's weights."""
    wide = em.wide(x)
    sizes, lengths = em.static_shape(x, "resize")[2:], em.out_shape()[2:]
    for axis, (size, length) in enumerate(zip(sizes, lengths, strict=True), start=2):
        ratio = 1 / scales[axis - 2] if scales is not None else size / length
        matrix = em.const(_matrix(size, length, ratio, kernel, support, antialias), em.dtype(wide))
        wide = em(op.matmul(matrix, wide) if axis == 2 else op.matmul(wide, em.permute(matrix, [1, 0])))
    return em.cast(wide, em.out_dtype())


def _matrix(size: int, length: int, ratio: float, kernel: Kernel, support: int, antialias: bool) -> Array:
    """weights[i, j] of source pixel j in result pixel i, with the edge pixels repeated, or cut off by antialiasing."""
    stretch = max(ratio, 1.0) if antialias else 1.0
    centres = ratio * (np.arange(length) + 0.5) - 0.5
    if not antialias and support == 1:
        centres = np.maximum(centres, 0)
    reach = math.ceil(support * stretch) + 1
    weights = np.zeros((length, size))
    for offset in range(-reach, reach + 1):
        place = np.floor(centres).astype(int) + offset
        value = kernel((place - centres) / stretch)
        if antialias:
            value = np.where((place >= 0) & (place < size), value, 0)
        np.add.at(weights, (np.arange(length), np.clip(place, 0, size - 1)), value)
    normal: Array = weights / weights.sum(axis=1, keepdims=True)
    return normal


_GRID_MODES = ("bilinear", "nearest", "bicubic")
_GRID_PADDING = ("zeros", "border", "reflection")


@converts("aten.grid_sampler_2d.default")
def _grid_sample(em: Emitter, x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    """The image at grid[n, h, w] = (x, y), both from -1 to 1."""
    turned = em.permute(em.wide(grid), [0, 3, 1, 2])
    sampled = op.image.grid_sample(
        em.wide(x),
        turned,
        method=_GRID_MODES[mode],
        layout="NCHW",
        padding_mode=_GRID_PADDING[padding],
        align_corners=align_corners,
    )
    return em.cast(em(sampled), em.out_dtype())
