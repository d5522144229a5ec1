"""Samples of images at reflected places: TVM divides by the size less 1, which is 0 of an image of one pixel."""

from __future__ import annotations

from tvm import relax, topi
from tvm.relax.transform.legalize_ops import image

__all__ = ["SAMPLING"]


def _grid_sample(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """An axis of one pixel has it twice where corners are aligned: all places on it are the same one."""
    x, grid = call.args
    if call.attrs.padding_mode == "reflection" and call.attrs.align_corners:
        for axis, size in enumerate(x.ty.shape):
            if axis >= 2 and getattr(size, "value", None) == 1:
                x = builder.emit(builder.call_te(topi.repeat, x, 2, axis, primfunc_name_hint="twice"))
    return image._image_grid_sample(builder, builder.normalize(relax.Call(call.op, [x, grid], call.attrs)))


SAMPLING = {"relax.image.grid_sample": _grid_sample}
