"""Template `cuda.elementwise`: what reduces nothing, 16 bytes at a time."""

from __future__ import annotations

from tvm import tirx

from relaxc.schedules.cuda.common.expression import Unsupported
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.sizes import at_least_one, divided
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.elementwise.form import Form
from relaxc.schedules.cuda.elementwise.lanes import Lanes, buffers_of
from relaxc.schedules.cuda.elementwise.reading import match
from relaxc.schedules.cuda.elementwise.values import TYPES
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import PrimFunc, Size
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["Elementwise", "most_dividing", "most_lanes", "source_of"]

_VECTOR_BYTES = 16
_LEAST_STORE_BYTES = 8
_IN_FLIGHT = 64
"""Bytes that a thread reads before it uses the first."""
_VECTORS = (1, 2, 4, 8)
_LEAST_LANES = 2
"""By default: a warp's accesses are whole sectors yet."""


class Elementwise(TextTemplate[Form]):
    """`out[…] = f(operands at any addresses)`: one function of a few elements for each element of the result.

    Parameters: `lanes`, the neighbours of the result in a vector; `vectors` of a thread; `threads` of a block.
    The bound is memory: the bytes of the operands that are read, and of the result.
    """

    name = "cuda.elementwise"
    version = 1

    def match(self, func: PrimFunc) -> Form | Declined:
        """See `TextTemplate`."""
        found = match(func)
        if isinstance(found, Declined):
            return found
        try:
            Lanes(found, 1).text()
        except Unsupported as error:
            return Declined(str(error))
        return found

    def space(self, form: Form, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        most = most_lanes(form)
        return {
            "lanes": tuple(lanes for lanes in (1, 2, 4, 8, 16) if lanes <= most),
            "vectors": _VECTORS,
            "threads": (128, 256, 512),
        }

    def default(self, form: Form, gpu: Gpu) -> Parameters:
        """Return 16 bytes of the widest that is read or written by neighbours, and vectors a thread if there are many.

        Fewer lanes where vectors are too few for half of the threads of all SMs: what a thread computes is not hidden.
        GELU of 128x3072 in 16 bits takes 1.66 us on an H100 with two lanes and 2.52 with eight.
        """
        lanes = most_lanes(form)
        accesses = Lanes(form, lanes).accesses
        read = [operand for operand in form.operands if accesses[operand.var].kind == "neighbours"]
        always = [operand.buffer for operand in read if not operand.guards]
        widest = max(dtype_bytes(str(buffer.dtype)) for buffer in (form.out, *always))
        stored = _LEAST_STORE_BYTES // dtype_bytes(str(form.out.dtype))
        lanes = min(lanes, max(1, stored, _VECTOR_BYTES // widest))
        while lanes > _LEAST_LANES and 2 * form.elements // lanes < gpu.sms * gpu.threads_per_sm:
            lanes //= 2
        sizes = [(bool(each.guards), lanes * dtype_bytes(str(each.buffer.dtype))) for each in read]
        # Of those under conditions, a vector mostly reads one.
        per_vector = sum(size for guarded, size in sizes if not guarded)
        per_vector += max((size for guarded, size in sizes if guarded), default=0)
        total = form.elements // lanes
        fitting = [
            vectors
            for vectors in (4, 2)
            if vectors * per_vector <= _IN_FLIGHT and total >= vectors * gpu.sms * gpu.threads_per_sm
        ]
        threads = 256 if total >= 256 * gpu.sms else 128
        return {"lanes": lanes, "vectors": fitting[0] if fitting else 1, "threads": threads}

    def kernel_of(self, form: Form, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        lanes, vectors, threads = (parameters[name] for name in ("lanes", "vectors", "threads"))
        total = divided(tir.product(list(form.sizes)), lanes)
        numbers = {"LANES": lanes, "VECTORS": vectors, "THREADS": threads}
        body = Lanes(form, lanes).text() + text_of("relaxc.schedules.cuda.elementwise", "elementwise.cuh")
        source = source_of(form, numbers, body, "elementwise(")
        grid = tir.ceil_div(total, threads * vectors)
        pointers = (form.out, *buffers_of(form))
        return TextKernel(
            source, (), pointers, at_least_one(grid), 1, threads, 16,
            gpu.threads_per_sm // threads // 2, sizes=(total, *form.symbols) if form.symbols else (),
        )  # fmt: skip


def most_lanes(form: Form) -> int:
    """Return the largest power of two up to 16 that divides the last axis, in which 16 bytes of the result fit."""
    if not form.axes:
        return 1
    most = max(1, _VECTOR_BYTES // dtype_bytes(str(form.out.dtype)))
    return most_dividing(form.sizes[-1], most)


def most_dividing(size: Size, most: int) -> int:
    """Return the largest power of two up to `most`, which is one, that divides a size."""
    while most > 1 and tir.as_int(tir.simplify(tirx.floormod(tir.size(size), most))) != 0:
        most //= 2
    return most


def source_of(form: Form, numbers: dict[str, int], body: str, call: str) -> str:
    """Return the text of a kernel that calls `call`, whose last arguments are the result and the operands."""
    names = [f"p{i}" for i in range(len(buffers_of(form)))]
    parameters = ["void* shared", "void* out", *(f"const void* {name}" for name in names)]
    if form.symbols:
        sizes = ["total", *(f"s{i}" for i in range(len(form.symbols)))]
        parameters, names = [*parameters, *(f"long long {name}" for name in sizes)], [*names, *sizes]
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in numbers.items())
    return (
        f"{text_of('relaxc.schedules.cuda.common', 'hopper.cuh')}namespace NAME_ {{\n{constants}"
        f"typedef {TYPES[str(form.out.dtype)]} Out;\n"
        f"{text_of('relaxc.schedules.cuda.elementwise', 'lanes.cuh')}{body}}}\n"
        f"__device__ __forceinline__ void NAME({', '.join(parameters)}) {{\n"
        f"  NAME_::{call}(NAME_::Out*)out, NAME_::Operands{{{', '.join(names)}}});\n}}\n"
    )
