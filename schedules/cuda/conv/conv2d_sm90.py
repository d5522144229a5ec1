"""Template `cuda.conv2d_sm90`: convolutions of NHWC images as products on Hopper's tensor cores.

The images are 16-bit floats, or bytes. The kernel is that of `cuda.gemm_sm90`; the copy engine reads its left operand
from a map of the image in four dims. A tile of rows is a box of pixels, a step of the sum 128 bytes of channels at one
tap, and what lies outside of the image is zero. So the image is read as it is, and nothing is written besides the
result (implicit GEMM).
"""

from __future__ import annotations

from math import ceil

from relaxc.schedules.cuda.common.expression import LOW
from relaxc.schedules.cuda.common.kernel import ImageMap, TensorMap, TextKernel, text_of
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.conv.form import Conv2d, match
from relaxc.schedules.cuda.gemm.gemm_sm90 import source
from relaxc.schedules.cuda.gemm.tile import Tile, choices, default, refusal
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["Conv2dSm90"]


class Conv2dSm90(TextTemplate[Conv2d]):
    """`C[n, y, x, o] = epilogue(sum over r, q, c of A[n, y*s + r*d - p, x*s + q*d - p, c] * W[r, q, o, c])`.

    The parameters are those of `cuda.gemm_sm90`, of the product whose rows are the pixels of the result.
    """

    name = "cuda.conv2d_sm90"
    version = 7
    since = "sm_90a"

    def match(self, func: PrimFunc) -> Conv2d | Declined:
        """See `TextTemplate`."""
        return match(func)

    def space(self, form: Conv2d, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return choices(form)

    def default(self, form: Conv2d, gpu: Gpu) -> Parameters:
        """See `TextTemplate`; with overlapping rows of pixels to read from L2, two CTAs share the weights' way."""
        found = default(form, gpu)
        tile = Tile.of(found)
        shared = form.by_rows and tile.rows == 128 and tile.parts == 1 and tile.tiles(form) >= 2 * gpu.sms
        return {**found, "cluster": 2} if shared else found

    def kernel_of(self, form: Conv2d, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        tile = Tile.of(parameters)
        return Declined(reason) if (reason := refusal(tile)) else kernel(form, tile, gpu)


def kernel(conv: Conv2d, tile: Tile, gpu: Gpu) -> TextKernel:
    """Return the launch of `conv` in tiles of `tile`."""
    low = str(conv.out.dtype) in LOW
    images, lines, pixels = conv.box(tile.rows)
    batch, (height, width) = conv.image[0], conv.result
    row = conv.n * 2
    out = ImageMap(
        conv.out, (conv.n, width, height, batch), (row, row * width, row * width * height), (pixels, lines, images)
    )
    maps: list[TensorMap | ImageMap] = [
        _image(conv, (pixels, lines, images)),
        TensorMap(conv.b, (conv.depth, conv.n, conv.taps), tile.columns // tile.cluster),
        *([out] if tile.by_copy_engine(low) else []),
    ]
    numbers = _numbers(conv, (images, lines, pixels))
    return TextKernel(
        source=source(conv, tile, gpu, rows=text_of("relaxc.schedules.cuda.conv", "pixels.cuh"), numbers=numbers),
        maps=maps,
        pointers=(conv.out, *conv.operands),
        grid=tile.grid(conv, gpu),
        cluster=tile.cluster * tile.parts,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(gpu, low),
        per_sm=tile.per_sm,
    )


def _image(conv: Conv2d, box: tuple[int, int, int]) -> ImageMap:
    """The image's map; of a kernel by rows, one in which each pixel of the result has its row of taps and channels."""
    batch, height, width, channels = conv.image
    pixel = channels * dtype_bytes(conv.dtype)
    line = pixel * width
    step_y, step_x = conv.windows.strides
    if conv.by_rows:
        dims = (conv.depth, conv.result[1], height, batch)
        return ImageMap(conv.a, dims, (pixel * step_x, line, line * height), box, (1, step_y, 1))
    dims = (channels, width, height, batch)
    return ImageMap(conv.a, dims, (pixel, line, line * height), box, (step_x, step_y, 1))


def _numbers(conv: Conv2d, box: tuple[int, int, int]) -> dict[str, int]:
    windows = conv.windows
    in_row = conv.by_rows
    return {
        "IMAGES": conv.image[0], "OUT_H": conv.result[0], "OUT_W": conv.result[1],
        "BOX_N": box[0], "BOX_H": box[1], "BOX_W": box[2],
        "TAPS": conv.taps, "TAPS_IN_ROW": 1 if in_row else windows.kernel[1],
        "CHANNEL_ATOMS": ceil(conv.depth / conv.atom),
        "STEP_Y": windows.strides[0], "STEP_X": 1 if in_row else windows.strides[1],
        "PAD_Y": windows.padding[0], "PAD_X": windows.padding[1],
        "DILATION_Y": windows.dilation[0], "DILATION_X": windows.dilation[1],
    }  # fmt: skip
