"""A convolution of the graph as the operator that plans are about."""

from __future__ import annotations

from typing import Any

from tvm import relax

from relaxc.schedules.operators import Conv2d
from relaxc.service.passes.common.images import known, pair, sides

__all__ = ["conv2d_operator"]


def conv2d_operator(
    data: relax.Expr, weight: tuple[int, ...], attrs: Any, dtypes: dict[str, Any], lanes: int, **more: Any
) -> Conv2d:
    """Return what a convolution of an image with a weight of this shape is; an image of few channels is plain.

    It has blocks of `lanes` channels where it is not; `more` are other fields of the operator.
    """
    batch, channels, height, width = data.ty.shape
    return Conv2d(
        batch=known(batch),
        channels=int(channels),
        height=known(height),
        width=known(width),
        filters=weight[0],
        kernel=(weight[2], weight[3]),
        strides=pair(attrs.strides),
        padding=sides(attrs.padding),
        dilation=pair(attrs.dilation),
        groups=int(attrs.groups),
        **{"plain": int(channels) * 2 <= lanes, **more},
        **dtypes,
    )
