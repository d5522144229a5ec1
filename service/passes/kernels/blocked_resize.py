"""Bilinear interpolation on `NCHW[v]c`: a vector of channels is four loads, whose places and weights are scalars."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import te, topi

__all__ = ["bilinear"]


def bilinear(attrs: Any, size: tuple[int, ...], lanes: int) -> Callable[[te.Tensor], te.Tensor] | None:
    """Return the tensor expression of R.image.resize2d with `attrs` to `size`; None for what is not plain bilinear."""
    if attrs.layout != "NCHW" or attrs.method != "linear" or any(float(edge) for edge in attrs.roi):
        return None
    if str(attrs.coordinate_transformation_mode) not in ("half_pixel", "align_corners"):
        return None
    return partial(
        topi.image.resize2d,
        roi=(0.0, 0.0, 0.0, 0.0),
        size=size,
        layout=f"NCHW{lanes}c",
        method="linear",
        coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
        rounding_method="",
    )
