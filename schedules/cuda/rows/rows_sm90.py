"""Template `cuda.rows_sm90`: norms and softmaxes of rows in one pass over memory."""

from __future__ import annotations

from math import ceil
from typing import Any

from schedules.cuda.common.expression import C_TYPES
from schedules.cuda.common.kernel import TextKernel, text_of
from schedules.cuda.common.template import HopperTemplate
from schedules.cuda.rows.form import Rows, match
from schedules.hardware import Gpu
from schedules.template import Choices, Declined, Parameters

__all__ = ["RowsSm90"]

_THREADS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_LEAST_BLOCK = 128
_MOST_HELD = 8
"""Vectors of eight elements that a thread holds, at most: 64 registers."""


class RowsSm90(HopperTemplate[Rows]):
    """`out[r, c] = f(x[r, c], reductions over the row of g(x[r, :]), …)`, any number of reductions after each other.

    Parameters: `threads` that share a row.
    """

    name = "cuda.rows_sm90"
    version = 1

    def match(self, func: Any) -> Rows | Declined:
        """See `HopperTemplate`."""
        found = match(func)
        if not isinstance(found, Declined) and found.columns > _THREADS[-1] * _MOST_HELD * 8:
            return Declined("its rows are longer than a block holds")
        return found

    def unconfirmed(self, form: Rows) -> str:
        """See `HopperTemplate`: nothing verifies on a GPU what is compiled elsewhere."""
        if form.summed:
            return "more than the row goes into its sums"
        return "" if str(form.x.dtype) == "float32" else "its rows are not of fp32"

    def choices_of(self, form: Rows, gpu: Gpu) -> Choices:
        """See `HopperTemplate`."""
        return _choices(form)

    def default_of(self, form: Rows, gpu: Gpu) -> Parameters:
        """See `HopperTemplate`."""
        return _default(form, gpu)

    def kernel_of(self, form: Rows, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `HopperTemplate`."""
        return _kernel(form, parameters["threads"])


def _choices(rows: Rows) -> Choices:
    vectors = rows.columns // 8
    fitting = [t for t in _THREADS if ceil(vectors / t) <= _MOST_HELD and t < vectors + 32]
    return {"threads": tuple(fitting)}


def _default(rows: Rows, gpu: Gpu) -> Parameters:
    """As few threads as fill the device: a warp needs no barrier; more where rows are few."""
    space = _choices(rows)["threads"]
    filling = [threads for threads in space if rows.rows * threads >= gpu.sms * gpu.threads_per_sm // 2]
    return {"threads": filling[0] if filling else space[-1]}


def _kernel(rows: Rows, threads: int) -> TextKernel:
    in_block = max(1, _LEAST_BLOCK // threads)
    numbers = {"ROWS": rows.rows, "COLUMNS": rows.columns, "THREADS_PER_ROW": threads, "ROWS_PER_BLOCK": in_block}
    operands = [f"p{i}" for i in range(len(rows.operands))]
    parameters = ["void* shared", "const void* x", "void* out", *(f"const void* {name}" for name in operands)]
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in numbers.items())
    types = f"typedef {C_TYPES[str(rows.x.dtype)]} In;\ntypedef {C_TYPES[str(rows.out.dtype)]} Out;\n"
    call = f"(float*)shared, (const NAME_::In*)x, (NAME_::Out*)out, NAME_::Operands{{{', '.join(operands)}}}"
    source = (
        f"{text_of('schedules.cuda.common', 'hopper.cuh')}namespace NAME_ {{\n{constants}{types}"
        f"using namespace hopper;\n{rows.text}{text_of('schedules.cuda.rows', 'rows.cuh')}}}\n"
        f"__device__ __forceinline__ void NAME({', '.join(parameters)}) {{\n"
        f"  NAME_::rows({call});\n}}\n"
    )
    grid = ceil(rows.rows / in_block)
    return TextKernel(source, (), (rows.x, rows.out, *rows.operands), grid, 1, in_block * threads, 256)
