"""Template `cuda.rows`: norms and softmaxes of rows in one pass over memory."""

from __future__ import annotations

from math import ceil

from relaxc.schedules.cuda.common.kernel import TextKernel
from relaxc.schedules.cuda.common.sizes import at_least_one, guess
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.rows.form import Rows, match
from relaxc.schedules.cuda.rows.text import source
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["RowReductions"]

_THREADS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_MOST_HELD = 64
"""Elements of a row that a thread holds, at most, each in a register."""
_EARLY = 96
"""Registers for what is read before the first sum: the rows, and operands where they fit in as well."""
_MANY_THREADS = 512
"""On each SM: where rows of 32 elements a thread give as many, there are many rows."""


class RowReductions(TextTemplate[Rows]):
    """`out[r, c] = f(x[r, c], reductions over the row of g(x[r, :]), …)`, any number of reductions after each other.

    Also `out[r] = f(those reductions)`, one value of each of several rows, where the row alone is reduced.

    Parameters: `threads` that share a row; `each`, the rows that they hold at once; `rows` times as many have a block.
    """

    name = "cuda.rows"
    version = 3

    def match(self, func: PrimFunc) -> Rows | Declined:
        """See `TextTemplate`."""
        found = match(func)
        if not isinstance(found, Declined) and found.columns > _THREADS[-1] * _MOST_HELD:
            return Declined("its rows are longer than a block holds")
        return found

    def space(self, form: Rows, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return {"threads": _threads(form), "each": (1, 2, 4), "rows": (1, 2, 4, 8)}

    def default(self, form: Rows, gpu: Gpu) -> Parameters:
        """Return a warp a row where rows are many: it needs no barrier. Few take more threads: each has less to do.

        Short rows are held by twos or fours: what is under way on an SM is what hides the latency of memory.
        """
        space = _threads(form)
        count = guess(form.rows)
        many = count * form.columns // 32 >= gpu.sms * _MANY_THREADS
        fitting = [t for t in space if t >= 32 and _held(form, t) <= (32 if many else 8)]
        threads = fitting[0] if fitting else space[-1]
        each = max(n for n in (1, 2, 4) if n == 1 or (many and n * _held(form, threads) <= 16))
        most = max(1, (128 if many else 256) // threads)
        groups = max(n for n in (1, 2, 4, 8) if n == 1 or n <= min(most, count // each // gpu.sms))
        return {"threads": threads, "each": each, "rows": groups}

    def kernel_of(self, form: Rows, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        return _kernel(form, parameters["threads"], parameters["each"], parameters["rows"], gpu)


def _vector(rows: Rows) -> int:
    """The elements of 16 bytes."""
    return 4 if str(rows.x.dtype) == "float32" else 8


def _held(rows: Rows, threads: int) -> int:
    """The elements of a row that a thread holds."""
    return ceil(rows.columns / _vector(rows) / threads) * _vector(rows)


def _threads(rows: Rows) -> tuple[int, ...]:
    vectors = rows.columns // _vector(rows)
    fitting = [t for t in _THREADS if _held(rows, t) <= _MOST_HELD and (t < vectors + 32 or t == _THREADS[0])]
    return tuple(fitting)


def _kernel(rows: Rows, threads: int, each: int, groups: int, gpu: Gpu) -> TextKernel | Declined:
    groups = max(groups, ceil(32 / threads))
    held = _held(rows, threads)
    if threads * groups > _THREADS[-1]:
        return Declined("its blocks would have more than 1024 threads")
    if each > 1 and each * held > _MOST_HELD:
        return Declined("its rows do not fit into registers together")
    registers = gpu.registers_per_sm // (threads * groups)
    wanted = held * (each * (1 + rows.here) + rows.across)
    numbers = {
        "ROWS": tir.as_int(rows.rows) or 0, "COLUMNS": rows.columns, "VECTOR": _vector(rows),
        "THREADS_PER_ROW": threads,
        "ROWS_EACH": each, "GROUPS": groups, "EARLY": int(wanted <= min(_EARLY, registers // 2)),
        "WHOLE": int(rows.whole),
        "AT_CALL": int(bool(rows.sizes)),
    }  # fmt: skip
    grid = at_least_one(tir.ceil_div(rows.rows, groups * each))
    shared = max(256, rows.sums * each * groups * threads // 32 * 4)
    return TextKernel(
        source(rows, numbers, "rows"), (), (rows.x, rows.out, *rows.operands), grid, 1, groups * threads, shared,
        sizes=rows.sizes,
    )  # fmt: skip
