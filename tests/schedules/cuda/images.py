"""PrimFuncs over the windows of NHWC images, as the layout pass makes them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import relax

from benchmarks.gpu.fused import prim_func_of
from relaxc.schedules.cuda.conv import compute
from relaxc.schedules.cuda.conv.compute import Windows

__all__ = ["prim_func", "result_of"]

R = relax.op


def result_of(windows: Windows, image: tuple[int, ...], below: int = 0, right: int = 0) -> tuple[int, int]:
    """The lines and pixels of a line of the result, of an image that has `below` and `right` zeros more."""
    if windows.kind == "pixels":
        return 1, 1
    sizes = [
        (image[1 + i] + windows.padding[i] + more - (windows.kernel[i] - 1) * windows.dilation[i] - 1)
        // windows.strides[i]
        + 1
        for i, more in enumerate((below, right))
    ]
    return sizes[0], sizes[1]


def prim_func(
    windows: Windows, image: tuple[int, ...], filters: int = 0, *, dtype: str = "float16", residual: bool = False
) -> Any:
    """`relu(windows of the image (+ bias) (+ residual))` in `dtype`; with bias where there are `filters`."""
    (kh, kw), channels = windows.kernel, image[3]
    out = result_of(windows, image, *windows.padding)
    shapes = {
        "taps": (kh, kw, filters, channels),
        "rows": (kh, filters, kw, channels),
        "depthwise": (kh, kw, channels),
    }
    makers = {
        "taps": partial(compute.conv2d, windows=windows, out=out),
        "rows": partial(compute.rows_conv2d, windows=windows, out=out),
        "depthwise": partial(compute.depthwise_conv2d, windows=windows, out=out),
        "pixels": compute.pixels,
    }
    function = makers.get(windows.kind, partial(compute.pool, windows=windows, out=out))
    x = relax.Var("x", relax.TensorType(image, dtype))
    weight = [relax.Var("w", relax.TensorType(shapes[windows.kind], dtype))] if windows.kind in shapes else []
    bias = [relax.Var("b", relax.TensorType((1, 1, 1, filters), "float32"))] if filters else []
    other = [relax.Var("r", relax.TensorType((image[0], *out, filters or channels), dtype))] if residual else []
    block = relax.BlockBuilder()
    with block.function("main", [x, *weight, *bias, *other]):
        with block.dataflow():
            value = block.emit_te(function, x, *weight, primfunc_name_hint="sums", primfunc_attrs={"op_pattern": 4})
            value = R.add(value, bias[0]) if bias else value
            value = R.add(value, R.astype(other[0], "float32")) if other else value
            result = block.emit_output(block.normalize(R.astype(R.nn.relu(value), dtype)))
        block.emit_func_output(result)
    return prim_func_of(block.get())
