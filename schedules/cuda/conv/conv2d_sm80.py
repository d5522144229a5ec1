"""Template `cuda.conv2d_sm80`: convolutions of NHWC images on the tensor cores of sm_80 and every later device.

The kernel is that of `cuda.gemm_sm80`; its threads copy the left operand from the image as it is, a row a pixel of the
result, 16 bytes of channels at one tap at a time, with zeros where a tap is outside (implicit GEMM).
"""

from __future__ import annotations

from dataclasses import replace

from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.conv.form import Conv2d, image_text, match
from relaxc.schedules.cuda.gemm.gemm_sm80 import source, tiles_of
from relaxc.schedules.cuda.gemm.tile_sm80 import WarpTile, choices, default, refusal
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["Conv2dSm80", "kernel"]

_MOST_TAPS = 16
"""Lines of a kernel, and columns: which of them are inside of the image is a bit each of one number."""


class Conv2dSm80(TextTemplate[Conv2d]):
    """`C[n, y, x, o] = epilogue(sum over r, q, c of A[n, y*s + r*d - p, x*s + q*d - p, c] * W[r, q, o, c])`.

    The parameters are those of `cuda.gemm_sm80`, of the product whose rows are the pixels of the result.
    """

    name = "cuda.conv2d_sm80"
    version = 2

    def match(self, func: PrimFunc) -> Conv2d | Declined:
        """See `TextTemplate`; the sum runs over all taps and channels, none of them twice."""
        found = match(func, by_copy_engine=False, at_call=True)
        if isinstance(found, Declined):
            return found
        if max(found.windows.kernel) > _MOST_TAPS:
            return Declined(f"its kernel is larger than {_MOST_TAPS}x{_MOST_TAPS}")
        return replace(found, k=found.taps * found.depth)

    def space(self, form: Conv2d, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return choices(form)

    def default(self, form: Conv2d, gpu: Gpu) -> Parameters:
        """See `TextTemplate`."""
        return default(form, gpu)

    def kernel_of(self, form: Conv2d, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        tile = WarpTile(**parameters)
        return Declined(reason) if (reason := refusal(tile, form)) else kernel(form, tile, gpu)


def kernel(conv: Conv2d, tile: WarpTile, gpu: Gpu) -> TextKernel:
    """Return the launch of `conv` in tiles of `tile`, a CTA each."""
    names = ("mma_pixels.cuh", *(("exact_pixels.cuh",) if conv.is_wide else ()))
    copies = image_text(conv.image, conv.result, at_call=bool(conv.sizes))
    copies += "".join(text_of("relaxc.schedules.cuda.conv", name) for name in names)
    return TextKernel(
        source=source(conv, tile, _numbers(conv), copies),
        maps=(),
        pointers=(conv.a, conv.b, conv.out, *conv.operands),
        grid=tiles_of(conv, tile),
        sizes=conv.sizes,
        cluster=1,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes,
        # A thread has a place and the taps that are inside of each row that it copies.
        per_sm=tile.per_sm(gpu, conv, more=2 * tile.rows * tile.depth // 8 // tile.threads + 8),
        overlaps=False,
    )


def _numbers(conv: Conv2d) -> dict[str, int]:
    windows, in_row = conv.windows, conv.by_rows
    return {
        "CHANNELS": int(conv.image[3]), "KERNEL_H": windows.kernel[0], "KERNEL_W": 1 if in_row else windows.kernel[1],
        "DEPTH": conv.depth,
        "STEP_Y": windows.strides[0], "STEP_X": windows.strides[1],
        "PAD_Y": windows.padding[0], "PAD_X": windows.padding[1],
        "DILATION_Y": windows.dilation[0], "DILATION_X": windows.dilation[1],
    }  # fmt: skip
