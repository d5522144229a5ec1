"""Interpolation of images (NCHW)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from service.frontend.pt2_emit import Emitter, is_prim
from service.frontend.pt2_ops.registry import converts

__all__: list[str] = []

op = relax.op


def _check_scale(em: Emitter, x: Any, scales: Any) -> None:
    """torch samples by the given factor; TVM by the ratio of the sizes. They agree where the factor is exact."""
    if scales is None:
        return
    for size, length, scale in zip(em.shape(x)[2:], em.out_shape()[2:], scales, strict=True):
        if not is_prim(size) and size * scale != length:
            raise em.refuse(f"a factor of {scale} does not make {length} of {size} exactly")


def _resize(em: Emitter, x: Any, method: str, mode: str, rounding: str = "") -> Any:
    size = em.out_shape()[2:]
    if any(map(is_prim, size)):
        raise em.refuse("a result size that is not known when compiling")
    wide = em.wide(x)
    resized = op.image.resize2d(
        wide,
        size,
        method=method,
        coordinate_transformation_mode=mode,
        rounding_method=rounding,
        cubic_alpha=-0.75,
        layout="NCHW",
    )
    return em.cast(em(resized), em.out_dtype())


@converts("aten.upsample_bilinear2d.vec", "aten.upsample_bicubic2d.vec")
def _upsample(em: Emitter, x: Any, size: Any, align_corners: bool, scales: Sequence[float] | None = None) -> Any:
    if not align_corners:
        _check_scale(em, x, scales)
    method = "linear" if "bilinear" in em.node.target.name() else "cubic"
    return _resize(em, x, method, "align_corners" if align_corners else "half_pixel")


@converts("aten.upsample_nearest2d.vec")
def _nearest(em: Emitter, x: Any, size: Any, scales: Sequence[float] | None = None) -> Any:
    """The pixel at floor(i / scale)."""
    _check_scale(em, x, scales)
    return _resize(em, x, "nearest_neighbor", "asymmetric", "floor")
