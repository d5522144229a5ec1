"""Template `cuda.lines_sm90`: convolutions of images of 8 channels, whose lines are held in shared memory.

A network's first layer. `cuda.conv2d_sm90` copies each pixel once for each row of the kernel, and again for its
neighbours; here a strip of lines is copied once, and the tensor cores read it under each tap of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from relaxc.schedules.cuda.common.expression import C_TYPES
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.conv.compute import VECTOR
from relaxc.schedules.cuda.conv.form import Conv2d, match
from relaxc.schedules.cuda.gemm.gemm_sm90 import multiply
from relaxc.schedules.hardware import GPUS, Gpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["LinesSm90", "Strip", "kernel"]

_TILE = 8
"""Lines of a tile, and pixels of each."""
_MAX_STAGES = 4
"""No more than warps that copy: each has a place of its own in the ring."""
_LEAST_PIXELS = 16
"""Pixels of a line of the strips that were the fastest; narrower ones have not been timed."""
_MAX_COLUMNS = 128
_MAX_STEP = 2
_MAX_DISTANCE = 1 << 18
"""Bytes between two pieces of an operand."""
_CHUNK_BYTES = 64 * 128
_SHARED_BYTES = GPUS["sm_90"].shared_bytes_per_block
"""What a CTA may have: this text is for no other architecture."""


@dataclass(frozen=True)
class Strip:
    """`pixels` of 8 lines of the result that are computed from one copy, by so many warpgroups."""

    conv: Conv2d
    pixels: int
    consumers: int

    @property
    def columns(self) -> int:
        """The filters, up to whole chunks of 64."""
        return ceil(self.conv.n / 64) * 64

    @property
    def line_bytes(self) -> int:
        """Bytes of a line of the image under a strip."""
        step = self.conv.windows.strides[1]
        return (self.pixels + (self.conv.windows.kernel[1] - 1) // step) * step * VECTOR * 2

    @property
    def bytes(self) -> int:
        """Bytes of the image under a strip."""
        windows = self.conv.windows
        lines = (_TILE - 1) * windows.strides[0] + (windows.kernel[0] - 1) * windows.dilation[0] + 1
        return lines * self.line_bytes

    @property
    def fixed_bytes(self) -> int:
        """Shared memory beside the strips: chunks of the result, the weights, barriers."""
        steps = ceil(self.conv.windows.kernel[0] * self.conv.windows.kernel[1] / 2)
        return 1024 + self.consumers * _CHUNK_BYTES + steps * 2 * self.columns * 16 + _MAX_STAGES * 16 + 16

    @property
    def stages(self) -> int:
        """How many strips a CTA holds."""
        return min(_MAX_STAGES, (_SHARED_BYTES - self.fixed_bytes) // self.bytes)

    @property
    def units(self) -> int:
        """Strips of the result."""
        height, width = map(int, self.conv.result)
        return int(self.conv.image[0]) * ceil(height / _TILE) * ceil(width / self.pixels)

    def cost(self, gpu: Gpu) -> float:
        """Return what the busiest SM does, roughly, in tiles: products, and the copies that do not hide behind them."""
        each = self.pixels // _TILE
        return ceil(self.units / gpu.sms) * (each + self.bytes / (64 * 1024)) + each / 2


class LinesSm90(TextTemplate[Conv2d]):
    """What `cuda.conv2d_sm90` computes by rows, of 8 channels and strides of 1 and 2 along lines.

    Parameters: `pixels` of a line in a strip, and `consumers`, warpgroups that multiply.
    """

    name = "cuda.lines_sm90"
    version = 2
    since = "sm_90a"

    def match(self, func: PrimFunc) -> Conv2d | Declined:
        """See `TextTemplate`."""
        found = match(func)
        if isinstance(found, Declined):
            return found
        reason = _refusal(found)
        return Declined(reason) if reason else found

    def space(self, form: Conv2d, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return {"pixels": _pixels(form), "consumers": (2, 3)}

    def default(self, form: Conv2d, gpu: Gpu) -> Parameters:
        """See `TextTemplate`."""
        sizes = _pixels(form)
        strips = [Strip(form, pixels, 3) for pixels in sizes if pixels >= min(_LEAST_PIXELS, sizes[-1])]
        return {"pixels": min(strips, key=lambda strip: strip.cost(gpu)).pixels, "consumers": 3}

    def kernel_of(self, form: Conv2d, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        return kernel(Strip(form, parameters["pixels"], parameters["consumers"]), gpu)


def _pixels(conv: Conv2d) -> tuple[int, ...]:
    """Whole tiles, most of which cut lines evenly; two strips must fit: one is copied while another is multiplied."""
    width = conv.result[1]
    sizes = {ceil(width / (parts * _TILE)) * _TILE for parts in range(1, 9)}
    sizes |= {_LEAST_PIXELS} if width > _TILE else set()
    return tuple(size for size in sorted(sizes) if Strip(conv, size, 3).stages >= 2)


def _refusal(conv: Conv2d) -> str:
    windows = conv.windows
    if not conv.by_rows or conv.image[3] != VECTOR:
        return "its pixels are not of 8 channels, without padding beside the lines"
    if windows.strides[1] > _MAX_STEP:
        return "its stride along lines is more than 2"
    if conv.n > _MAX_COLUMNS:
        return "it has more than 128 filters"
    pixels = _pixels(conv)
    distance = max(windows.strides[0], windows.dilation[0])
    if not pixels or Strip(conv, pixels[-1], 3).line_bytes * distance >= _MAX_DISTANCE:
        return "two strips of its lines do not fit"
    return ""


def kernel(strip: Strip, gpu: Gpu) -> TextKernel:
    """Return the launch of a convolution in strips."""
    conv, stages, grid = strip.conv, strip.stages, min(strip.units, gpu.sms)
    windows = conv.windows
    numbers = {
        "IMAGES": conv.image[0], "IN_H": conv.image[1], "IN_W": conv.image[2],
        "OUT_H": conv.result[0], "OUT_W": conv.result[1],
        "KERNEL_H": windows.kernel[0], "KERNEL_W": windows.kernel[1],
        "STEP_Y": windows.strides[0], "STEP_X": windows.strides[1],
        "PAD_Y": windows.padding[0], "DILATION_Y": windows.dilation[0],
        "SIZE_N": conv.n, "TILE_N": strip.columns, "STRIP": strip.pixels, "STAGES": stages,
        "CONSUMERS": strip.consumers, "GRID": grid,
    }  # fmt: skip
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in numbers.items())
    types = f"typedef {C_TYPES[str(conv.out.dtype)]} Out;\nusing namespace hopper;\n"
    body = f"{constants}{types}{conv.epilogue}{multiply(strip.columns, (conv.dtype, conv.dtype), False)}"
    source = (
        f"{text_of('relaxc.schedules.cuda.common', 'hopper.cuh')}namespace NAME_ {{\n{body}"
        f"{text_of('relaxc.schedules.cuda.conv', 'lines.cuh')}}}\n{_entry(conv)}"
    )
    return TextKernel(
        source=source,
        maps=(),
        pointers=(conv.a, conv.b, conv.out, *conv.operands),
        grid=grid,
        cluster=1,
        threads=(strip.consumers + 1) * 128,
        shared_bytes=strip.fixed_bytes + stages * strip.bytes,
        per_sm=1,
    )


def _entry(conv: Conv2d) -> str:
    """The function that the PrimFunc calls."""
    pointers = "".join(f", const void* p{i}" for i in range(len(conv.operands)))
    operands = ", ".join(f"p{i}" for i in range(len(conv.operands)))
    return (
        f"__device__ __forceinline__ void NAME(void* shared, const void* a, const void* b, void* out{pointers}) {{\n"
        "  NAME_::convolve((uint8_t*)shared, (const uint4*)a, (const uint4*)b, (NAME_::Out*)out, "
        f"NAME_::Operands{{{operands}}});\n}}\n"
    )
