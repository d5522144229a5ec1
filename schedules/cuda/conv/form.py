"""What a PrimFunc convolves: an NHWC image of floats or bytes with filters, as `conv.compute` describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Any

from tvm import tirx

from relaxc.schedules.cuda.common.epilogue import Axes, epilogue_of
from relaxc.schedules.cuda.common.expression import BYTES, LOW, Unsupported
from relaxc.schedules.cuda.common.sizes import buffers_of, guess, known_or, symbols_of
from relaxc.schedules.cuda.conv.compute import Windows
from relaxc.schedules.cuda.gemm.form import LEAST_DEPTH, ROWS, WIDE, Gemm, is_in_tf32
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.analysis import static_parameters
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Buffer, PrimFunc, SBlock, Size
from relaxc.schedules.template import Declined

__all__ = ["IMAGE", "Conv2d", "box_of", "image_of", "image_text", "match", "pixel_axes", "reduction_with_windows"]

IMAGE = ("in_h", "in_w", "out_h", "out_w")
"""The fields of Operands that have the sizes of an image and of its result, behind the rows, if known at the call."""

_MAX_ELEMENTS = 1 << 31
_MAX_SPAN = 256
"""Elements that a box of the copy engine spans in one dim."""
_MAX_STEP = 8


@dataclass(frozen=True)
class Conv2d(Gemm):
    """A product whose rows are the pixels of the result, and whose sums run over taps and channels.

    `k` counts each tap's channels as whole atoms, or all taps and channels of a row of the kernel as one. Images, lines
    and columns may be known at the call alone.
    """

    windows: Windows
    image: tuple[Any, Any, Any, int]
    result: tuple[Any, Any]

    @property
    def by_rows(self) -> bool:
        """Whether a step of the sum is a row of the kernel."""
        return self.windows.kind == "rows"

    @property
    def taps(self) -> int:
        """Steps of the sum that are counted apart from channels."""
        return self.windows.kernel[0] * (1 if self.by_rows else self.windows.kernel[1])

    @property
    def depth(self) -> int:
        """Elements of a tap."""
        return self.image[3] * (self.windows.kernel[1] if self.by_rows else 1)

    def box(self, rows: int) -> tuple[int, int, int]:
        """Return images, lines and pixels of a line of a tile of up to `rows` pixels."""
        steps = (self.windows.strides[0], 1 if self.by_rows else self.windows.strides[1])
        return box_of((self.image[0], *self.result), steps, rows)

    def row_tiles(self, rows: int) -> int:
        """Return how many boxes cover the result."""
        sizes = (self.image[0], *self.result)
        tiles = 1
        for size, part in zip(sizes, self.box(rows), strict=True):
            tiles *= ceil(size / part)
        return tiles


@lru_cache
def box_of(sizes: tuple[int, int, int], steps: tuple[int, int], rows: int) -> tuple[int, int, int]:
    """Return the box of at most `rows` pixels of which the fewest cover `sizes`: the longest lines, then most lines."""
    images, height, width = sizes
    best, found = None, (1, 1, 1)
    for x in range(1, min(width, rows, _MAX_SPAN // steps[1]) + 1):
        for y in range(1, min(height, rows // x, _MAX_SPAN // steps[0]) + 1):
            n = min(images, rows // (x * y), _MAX_SPAN)
            n = ceil(images / ceil(images / n))
            tiles = ceil(images / n) * ceil(height / y) * ceil(width / x)
            key = (tiles, -x, -y)
            if best is None or key < best:
                best, found = key, (n, y, x)
    return found


def image_text(image: Sequence[Size], result: Sequence[Size], *, at_call: bool) -> str:
    """Return the struct Image: the sizes of an image and of its result, and the type Place of positions."""
    sizes = dict(zip(IMAGE, (image[1], image[2], *result), strict=True))
    fields = "".join(
        f"  static constexpr int {name} = {size};\n" if isinstance(size, int) else f"  const int {name};\n"
        for name, size in sizes.items()
    )
    given = ", ".join(f"{name}((int)operands.{name})" for name, size in sizes.items() if not isinstance(size, int))
    return (
        f"typedef {'long long' if at_call else 'int'} Place;\nstruct Image {{\n{fields}"
        f"  DEV Image(const Operands& operands){' : ' + given if given else ''} {{}}\n}};\n"
    )


def reduction_with_windows(func: PrimFunc, *, at_call: bool = False) -> tuple[SBlock, Windows] | Declined:
    """Return the one reduction of `func`, annotated with windows, and these; `at_call`: sizes may be known there."""
    if not at_call and static_parameters(func) is None:
        return Declined("its sizes are symbolic")
    blocks = [realize.block for realize in block_realizes(func) if realize.block.init is not None]
    windows = Windows.of(blocks[0]) if len(blocks) == 1 else None
    if windows is None:
        return Declined("it does not sum over the windows of an image")
    return blocks[0], windows


def image_of(
    func: PrimFunc, block: SBlock, *, or_bytes: bool = False, or_wide: bool = False
) -> tuple[Buffer, Buffer | None] | Declined:
    """Return the buffers of the image and of the weight, if there is one: both parameters.

    Both are 16-bit floats of one dtype, with `or_wide` also fp32; with `or_bytes`, where the sums are int32, each is
    bytes.
    """
    loaded = [load.source for load in tir.loads(block.body.value) if not load.source.same_as(block.body.buffer)]
    buffers: list[Buffer] = []
    for source in loaded:
        if not any(source.same_as(other) for other in buffers):
            buffers.append(source)
    if not buffers or len(buffers) > 2 or not all(any(b.same_as(p) for p in buffers_of(func)) for b in buffers):
        return Declined("an operand is computed in the same PrimFunc")
    dtypes = {str(buffer.dtype) for buffer in buffers}
    of_bytes = or_bytes and str(block.body.buffer.dtype) == "int32" and dtypes <= set(BYTES)
    floats = {*LOW, WIDE} if or_wide else set(LOW)
    if not of_bytes and (not dtypes <= floats or len(dtypes) > 1):
        return Declined(f"its operands are not {'' if or_wide else '16-bit '}floats of one dtype")
    counts = [tir.as_int(tir.product(list(buffer.shape))) for buffer in buffers]
    if any(count is not None and count >= _MAX_ELEMENTS for count in counts):
        return Declined("an operand has 2^31 elements or more")
    return buffers[0], buffers[1] if len(buffers) > 1 else None


def pixel_axes(block: SBlock) -> Axes:
    """Return the axes of a result `[images, lines, pixels, channels]`: all pixels are rows."""
    spatial = [iv for iv in block.iter_vars if iv.iter_type == tirx.IterVar.DataPar]
    axes = [iv.var for iv in spatial]
    extents = {iv.var: known_or(iv.dom.extent) for iv in spatial}
    origin = {axis: tir.zero(axis) if tir.as_int(extents[axis]) == 1 else axis for axis in axes}
    texts = dict(zip(axes[1:3], ("operands.out_h", "operands.out_w"), strict=True))
    return Axes((), tuple(axes[:3]), tuple(axes[3:]), extents, origin, texts)


def match(func: PrimFunc, *, by_copy_engine: bool = True, at_call: bool = False) -> Conv2d | Declined:
    """Return the convolution in `func`, or why it is none that the copy engine, or threads, can feed.

    With `at_call` images, lines and columns may be known there alone.
    """
    found = reduction_with_windows(func, at_call=at_call)
    if isinstance(found, Declined):
        return found
    block, windows = found
    if windows.kind not in ("taps", "rows"):
        return Declined(f"its windows are of the kind {windows.kind}")
    operands = image_of(func, block, or_bytes=by_copy_engine, or_wide=not by_copy_engine)
    if isinstance(operands, Declined):
        return operands
    image, weight = operands
    if weight is None:
        return Declined("it has no weight")
    batch, height, width, channels = (known_or(dim) for dim in image.shape)
    _, out_h, out_w, filters = (known_or(dim) for dim in block.body.buffer.shape)
    if not isinstance(channels, int) or not isinstance(filters, int):
        return Declined("its channels are known at the call alone")
    reason = _refusal(windows, channels, filters, by_copy_engine) or _overrun(windows, width, out_w)
    if str(image.dtype) in BYTES and (channels % 16 or windows.kind != "taps"):
        reason = "its channels of bytes are not in multiples of 16, or its windows not those of taps"
    if str(image.dtype) == WIDE and prod(windows.kernel) * channels < LEAST_DEPTH:
        reason = f"its sums of fp32 are of fewer than {LEAST_DEPTH} products"
    if reason:
        return Declined(reason)
    symbols = symbols_of(func)
    rows = tir.product([batch, out_h, out_w])
    sizes = (rows, *map(tir.size, (height, width, out_h, out_w)), *symbols) if symbols else ()
    names = {var: f"operands.s{at}" for at, var in enumerate(symbols)}
    try:
        fused = epilogue_of(func, block, pixel_axes(block), symbols=names, fields=(ROWS, *IMAGE))
    except Unsupported as error:
        return Declined(str(error))
    m, taps = guess(rows), windows.kernel[0] * windows.kernel[1]
    atom = 128 // dtype_bytes(str(image.dtype))
    k = windows.kernel[0] * atom if windows.kind == "rows" else taps * ceil(channels / atom) * atom
    if m * filters >= _MAX_ELEMENTS:
        return Declined("its result has 2^31 elements or more")
    return Conv2d(
        1, m, filters, k, False, image, weight, fused.out, fused.text, fused.operands, fused.expensive,
        windows, (batch, height, width, channels), (out_h, out_w), in_tf32=is_in_tf32(func, str(image.dtype)),
        rows=rows if symbols else None, sizes=sizes,
    )  # fmt: skip


def _refusal(windows: Windows, channels: int, filters: int, by_copy_engine: bool) -> str:
    if channels % 8 or filters % 8:
        return "its channels are not in multiples of 8, which the copy engine needs"
    if by_copy_engine and max(windows.strides) > _MAX_STEP:
        return "its strides are more than 8"
    if windows.kind == "rows":
        if by_copy_engine and channels * windows.kernel[1] > 64:
            return "a row of its kernel has more than 64 elements"
        if windows.padding[1] or windows.dilation[1] != 1:
            return "the rows of its kernel are not in one piece"
    return ""


def _overrun(windows: Windows, width: Size, out_w: Size) -> str:
    if windows.kind != "rows":
        return ""
    left = tir.size(width) - ((tir.size(out_w) - 1) * windows.strides[1] + windows.kernel[1])
    is_within = tir.analyzer_of({}).can_prove(left >= 0)
    return "" if is_within else "the rows of its kernel end beyond the image"
