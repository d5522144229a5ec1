"""Template `cuda.windows`: depthwise convolutions and pooling of NHWC images, 8 channels a thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from relaxc.schedules.cuda.common.epilogue import Epilogue, epilogue_of, pair_type
from relaxc.schedules.cuda.common.expression import C_TYPES, Unsupported
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.sizes import at_least_one, guess, known_or, symbols_of
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.conv.compute import Windows
from relaxc.schedules.cuda.conv.form import IMAGE, image_of, image_text, pixel_axes, reduction_with_windows
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["OverWindows"]

_KINDS = {"depthwise": 0, "max": 1, "sum": 2}
_THREADS = 128
_MOST_LOADS = 20
"""Of 16 bytes that a thread has in flight: four registers each."""
_INFINITY = {"float16": 0xFC00FC00, "bfloat16": 0xFF80FF80, "float32": 0xFF800000}
_LANES = 32
_MOST_PIXELS = 256
"""The largest image, in pixels, that this template sums; `cuda.reductions` takes larger ones."""
_MOST_TAPS = 64
"""Of a window: the loops over it are unrolled."""


@dataclass(frozen=True)
class _Form:
    windows: Windows
    image: Buffer
    weight: Buffer | None
    sizes: tuple[Any, Any, Any, int]
    result: tuple[Any, Any]
    epilogue: Epilogue
    at_call: tuple[Expr, ...] = ()
    """What Operands has behind the pointers where sizes are known at the call, images first."""

    def guessed(self) -> _Form:
        """Return the form with numbers for the sizes that are known at the call, by which its point is chosen."""
        batch, height, width, channels = (guess(size) for size in self.sizes)
        result = guess(self.result[0]), guess(self.result[1])
        return replace(self, sizes=(batch, height, width, channels), result=result, at_call=())


class OverWindows(TextTemplate[_Form]):
    """`C[n, y, x, c] = epilogue(sum or maximum over a window of A[n, …, …, c] (* W[r, q, c]))`, or over a whole image.

    Parameters: `strip`, the pixels beside each other that a thread computes; 1 for whole images. `per_sm`: 1 gives a
    thread the registers to have all its loads in flight, of which fewer threads are on an SM; 0: the compiler decides.
    """

    name = "cuda.windows"
    version = 5

    def match(self, func: PrimFunc) -> _Form | Declined:
        """See `TextTemplate`."""
        found = reduction_with_windows(func, at_call=True)
        if isinstance(found, Declined):
            return found
        block, windows = found
        operands = image_of(func, block, or_wide=True)
        if isinstance(operands, Declined):
            return operands
        image, weight = operands
        batch, height, width, channels = (known_or(dim) for dim in image.shape)
        symbols = symbols_of(func)
        open_pixels = windows.kind == "pixels" and not (isinstance(height, int) and isinstance(width, int))
        if not isinstance(channels, int) or open_pixels:
            return Declined("its channels, or all of its pixels, are known at the call alone")
        if windows.kind not in (*_KINDS, "pixels") or (weight is None) == (windows.kind == "depthwise"):
            return Declined(f"its windows are of the kind {windows.kind}")
        if channels % 8 or (windows.kind != "pixels" and windows.kernel[0] * windows.kernel[1] > _MOST_TAPS):
            return Declined("its channels are not in multiples of 8, or its windows have more than 64 taps")
        if not symbols and batch * height * width * channels >= 1 << 31:
            return Declined("its image has 2^31 elements or more")
        _, out_h, out_w, _ = (known_or(dim) for dim in block.body.buffer.shape)
        if not symbols and batch * out_h * out_w * channels >= 1 << 31:
            return Declined("its result has 2^31 elements or more")
        names = {var: f"operands.s{at}" for at, var in enumerate(symbols)}
        sizes = (*map(tir.size, (batch, height, width, out_h, out_w)), *symbols) if symbols else ()
        try:
            fused = epilogue_of(func, block, pixel_axes(block), or_bytes=True, symbols=names, fields=("images", *IMAGE))
        except Unsupported as error:
            return Declined(str(error))
        return _Form(windows, image, weight, (batch, height, width, channels), (out_h, out_w), fused, sizes)

    def outdone(self, form: _Form, gpu: Gpu) -> str:
        """See `TextTemplate`: a block has all pixels of 64 channels, which is slow where these are many."""
        pixels = guess(form.sizes[1]) * guess(form.sizes[2]) if form.windows.kind == "pixels" else 0
        return "cuda.reductions has more blocks for an image" if pixels > _MOST_PIXELS else ""

    def space(self, form: _Form, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        whole = form.windows.kind == "pixels"
        return {"strip": (1,) if whole else (1, 2, 4), "per_sm": (0,) if whole else (0, 1)}

    def default(self, form: _Form, gpu: Gpu) -> Parameters:
        """See `TextTemplate`."""
        return _default(form.guessed(), gpu)

    def kernel_of(self, form: _Form, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        return _image_sums(form) if form.windows.kind == "pixels" else _windows(form, parameters, gpu)


def _default(form: _Form, gpu: Gpu) -> Parameters:
    """Long strips read less; short ones where there would be too few threads, or too many loads in flight."""
    if form.windows.kind == "pixels":
        return {"strip": 1, "per_sm": 0}
    wanted = gpu.sms * gpu.threads_per_sm // 2
    lines = form.sizes[0] * form.result[0]
    fitting = [
        strip
        for strip in (4, 2)
        if lines * ceil(form.result[1] / strip) * form.sizes[3] // 8 >= wanted
        and _span(form.windows, strip) * min(3, form.windows.kernel[0]) <= _most_loads(form)
    ]
    strip = fitting[0] if fitting else 1
    threads = lines * ceil(form.result[1] / strip) * form.sizes[3] // 8
    # Where all threads are on the device at once with 128 registers each, a thread's loads are all that is waited for.
    return {"strip": strip, "per_sm": int(threads * 128 <= gpu.sms * gpu.registers_per_sm)}


def _most_loads(form: _Form) -> int:
    """Elements of 8 channels that a thread has in flight."""
    return _MOST_LOADS * 2 // dtype_bytes(str(form.image.dtype))


def _span(windows: Windows, strip: int) -> int:
    """Elements of a line under a strip."""
    return (strip - 1) * windows.strides[1] + (windows.kernel[1] - 1) * windows.dilation[1] + 1


def _patch(form: _Form, strip: int, threads: int) -> tuple[int, int, int]:
    """Return groups of 8 channels, strips and lines of a block of up to `threads`: those that read the least."""
    groups, windows = form.sizes[3] // 8, form.windows
    shared = max((d for d in range(4, 9) if groups % d == 0), default=min(groups, 8))
    strips = ceil(form.result[1] / strip)

    def elements(patch: tuple[int, int]) -> int:
        x, y = patch
        high = (y - 1) * windows.strides[0] + (windows.kernel[0] - 1) * windows.dilation[0] + 1
        lines = int(form.result[0])
        return int(ceil(strips / x) * ceil(lines / y) * (_span(windows, strip * x) * high + 32))

    sizes = [(x, min(form.result[0], threads // shared // x)) for x in range(1, min(strips, threads // shared) + 1)]
    return shared, *min(sizes, key=elements)


def _windows(form: _Form, parameters: Parameters, gpu: Gpu) -> TextKernel:
    windows, strip, guessed = form.windows, parameters["strip"], form.guessed()
    batch, _, _, channels = form.sizes
    whole = guessed.sizes[0] * guessed.result[0] * ceil(guessed.result[1] / strip) * (channels // 8)
    group, across, down = _patch(guessed, strip, _THREADS if whole >= 2 * _THREADS * gpu.sms else _THREADS // 2)
    numbers = {
        "CHANNELS": channels, "KIND": _KINDS[windows.kind], "IS_OPEN": int(bool(form.at_call)),
        "KERNEL_H": windows.kernel[0], "KERNEL_W": windows.kernel[1],
        "STEP_Y": windows.strides[0], "STEP_X": windows.strides[1],
        "PAD_Y": windows.padding[0], "PAD_X": windows.padding[1],
        "DILATION_Y": windows.dilation[0], "DILATION_X": windows.dilation[1],
        "STRIP": strip, "PATCH_C": group, "PATCH_X": across, "PATCH_Y": down,
        "ROWS": max(1, min(windows.kernel[0], _most_loads(form) // _span(windows, strip))),
    }  # fmt: skip
    blocks_of = zip(
        (channels // 8, tir.ceil_div(form.result[1], strip), form.result[0]), (group, across, down), strict=True
    )
    grid = tir.product([batch, *(tir.ceil_div(size, part) for size, part in blocks_of)])
    weight = [] if form.weight is None else [form.weight]
    call = f"windows((const NAME_::In*)image, {'(const NAME_::In*)weight' if weight else 'nullptr'}, "
    text = f"constexpr uint32_t LEAST_PAIR = {_INFINITY[str(form.image.dtype)]:#x}u;\n"
    text += image_text(form.sizes, form.result, at_call=bool(form.at_call))
    text += (
        f"DEV int images_of(const Operands& operands) {{ return {'operands.images' if form.at_call else batch}; }}\n"
    )
    text += text_of("relaxc.schedules.cuda.windows", "windows.cuh")
    source = _source(form, numbers, text, ["image", *(["weight"] if weight else [])], call)
    pointers = (form.image, *weight, form.epilogue.out, *form.epilogue.operands)
    threads = group * across * down
    return TextKernel(
        source, (), pointers, at_least_one(grid), 1, threads, 16, parameters["per_sm"], sizes=form.at_call
    )


def _image_sums(form: _Form) -> TextKernel:
    batch, height, width, channels = form.sizes
    numbers = {"CHANNELS": channels, "PIXELS": height * width, "LANES": _LANES}
    call = "image_sums((float*)shared, (const NAME_::In*)image, "
    text = f"DEV int images_of(const Operands& operands) {{ return {'operands.images' if form.at_call else batch}; }}\n"
    text += text_of("relaxc.schedules.cuda.windows", "image_sums.cuh")
    source = _source(form, numbers, text, ["image"], call)
    pointers = (form.image, form.epilogue.out, *form.epilogue.operands)
    grid = at_least_one(tir.product([batch, ceil(channels / 64)]))
    return TextKernel(source, (), pointers, grid, 1, _LANES * 8, _LANES * 64 * 4, sizes=form.at_call)


def _source(form: _Form, numbers: dict[str, int], text: str, inputs: list[str], call: str) -> str:
    operands = [f"p{i}" for i in range(len(form.epilogue.operands))]
    parameters = ["void* shared", *(f"const void* {name}" for name in inputs), "void* out"]
    parameters += [f"const void* {name}" for name in operands]
    sizes = [f"s{i}" for i in range(len(form.at_call))]
    parameters, operands = [*parameters, *(f"long long {name}" for name in sizes)], [*operands, *sizes]
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in numbers.items())
    out = str(form.epilogue.out.dtype)
    types = f"typedef {C_TYPES[str(form.image.dtype)]} In;\n"
    types += f"typedef {C_TYPES[out]} Out;\ntypedef {pair_type(out)} Done;\n"
    return (
        f"{text_of('relaxc.schedules.cuda.common', 'hopper.cuh')}namespace NAME_ {{\n{constants}{types}"
        f"using namespace hopper;\n{form.epilogue.text}{text}}}\n"
        f"__device__ __forceinline__ void NAME({', '.join(parameters)}) {{\n"
        f"  NAME_::{call}(NAME_::Out*)out, NAME_::Operands{{{', '.join(operands)}}});\n}}\n"
    )
