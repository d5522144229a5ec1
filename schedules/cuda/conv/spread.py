"""Template `cuda.spread`: images of few channels become NHWC with 8 channels, with zeros beside their lines."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tvm import tirx

from relaxc.schedules.cuda.common.expression import C_TYPES, LOW
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.conv.compute import LEFT, VECTOR
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import Buffer, PrimFunc
from relaxc.schedules.template import Declined, Parameters

__all__ = ["Spread"]

_FLOATS = (*LOW, "float32")
_THREADS = 256
_MAX_ELEMENTS = 1 << 31


@dataclass(frozen=True)
class _Form:
    """The image, the result, and how many zeros stand left of each line."""

    image: Buffer
    out: Buffer
    left: int


class Spread(TextTemplate[_Form]):
    """`C[n, y, left + x, c] = A[n, c, y, x]`, zeros elsewhere; 8 channels, floats. It has no parameters."""

    name = "cuda.spread"
    version = 2

    def match(self, func: PrimFunc) -> _Form | Declined:
        """See `TextTemplate`."""
        blocks = [realize.block for realize in block_realizes(func)]
        if len(blocks) != 1 or LEFT not in blocks[0].annotations or len(func.params) != 2:
            return Declined("it does not spread the channels of an image alone")
        image, out = func.params
        if not all(map(tirx.is_buffer_var, (image, out))) or str(out.dtype) not in _FLOATS:
            return Declined("its result is not of floats")
        if str(image.dtype) not in _FLOATS:
            return Declined("its image is not of floats")
        if any(tir.as_int(dim) is None for buffer in (image, out) for dim in buffer.shape):
            return Declined("its sizes are symbolic")
        if int(tir.product(list(out.shape))) >= _MAX_ELEMENTS:
            return Declined("its result has 2^31 elements or more")
        return _Form(image, out, int(blocks[0].annotations[LEFT]))

    def kernel_of(self, form: _Form, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        return _kernel(form.image, form.out, form.left)


def _kernel(image: Buffer, out: Buffer, left: int) -> TextKernel:
    batch, channels, lines, width = (int(dim) for dim in image.shape)
    numbers = {
        "IMAGES": batch, "CHANNELS": channels, "LINES": lines, "IN_W": width, "OUT_W": int(out.shape[2]), "LEFT": left,
        "THREADS": _THREADS,
    }  # fmt: skip
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in numbers.items())
    types = f"typedef {C_TYPES[str(image.dtype)]} In;\ntypedef {C_TYPES[str(out.dtype)]} Out;\n"
    source = (
        f"{text_of('relaxc.schedules.cuda.common', 'hopper.cuh')}namespace NAME_ {{\n"
        f"using namespace hopper;\n{constants}{types}"
        f"{text_of('relaxc.schedules.cuda.conv', 'spread.cuh')}}}\n"
        "__device__ __forceinline__ void NAME(void* shared, const void* image, void* out) {\n"
        "  NAME_::spread((const NAME_::In*)image, (NAME_::Out*)out);\n}\n"
    )
    pixels = int(tir.product(list(out.shape))) // VECTOR
    return TextKernel(source, (), (image, out), ceil(pixels / _THREADS), 1, _THREADS, 16)
