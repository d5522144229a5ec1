"""What a PrimFunc multiplies: `out[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])`.

The operands are floats of 16 or 32 bits, 8-bit floats (e4m3) or bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.cuda.common.epilogue import Axes, epilogue_of
from relaxc.schedules.cuda.common.expression import BYTES, FP8, LOW, Unsupported
from relaxc.schedules.cuda.gemm.compute import takes_bytes
from relaxc.schedules.ir import contraction, tir
from relaxc.schedules.ir.analysis import static_parameters
from relaxc.schedules.ir.contraction import Contraction
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, Var
from relaxc.schedules.template import Declined

__all__ = ["LEAST_DEPTH", "ROWS", "TF32", "WIDE", "Gemm", "is_in_tf32", "match"]

TF32 = "relaxc.tf32"
"""The attribute of a PrimFunc whose products of fp32 may be those of operands rounded to tf32."""
WIDE = "float32"
ROWS = "rows"
"""The field of Operands that has the rows of a product where these are known at the call."""
_GUESSED_ROWS = 2048
LEAST_DEPTH = 16
"""The least products of a sum in fp32: what tensor cores cut off of a shorter one is more than fp32 rounds off."""
_MAX_ELEMENTS = 1 << 31
"""Positions are 32-bit in the kernel."""


@dataclass(frozen=True)
class Gemm:
    """The product's sizes, its buffers, and the CUDA text of its epilogue.

    A is `[batch, m, k]`; B is `[batch, k, n]` where `n_major`, else `[batch, n, k]`; all are contiguous. `epilogue` has
    the struct `Operands`, with the pointers of `operands`, and the function `epilogue`. `expensive`: it calls exp, erf
    or the like.
    """

    batch: int
    m: int
    n: int
    k: int
    n_major: bool
    a: Buffer
    b: Buffer
    out: Buffer
    epilogue: str
    operands: tuple[Buffer, ...]
    expensive: bool
    in_tf32: bool = field(default=False, kw_only=True)
    rows: Expr | None = field(default=None, kw_only=True)
    """`m` where it is known at the call alone: `m` is a guess then, by which tiles are chosen."""
    sizes: tuple[Expr, ...] = field(default=(), kw_only=True)
    """What the struct Operands has behind the pointers, `rows` first."""

    @property
    def dtype(self) -> str:
        """A's dtype: a float's, which is B's too, or int8 or uint8, where B has either."""
        return str(self.a.dtype)

    @property
    def sums(self) -> str:
        """The sums' dtype: int32 of bytes, fp32 of floats."""
        return "int32" if self.dtype in BYTES else "float32"

    @property
    def is_wide(self) -> bool:
        """Whether the operands are fp32, of which the tensor cores multiply parts."""
        return self.dtype == WIDE

    @property
    def in_parts_of_fp32(self) -> bool:
        """Whether each product is the sum of products of parts."""
        return self.is_wide and not self.in_tf32

    @property
    def in_parts(self) -> bool:
        """Whether the tensor cores add too few bits for a whole sum."""
        return self.dtype == FP8

    @property
    def atom(self) -> int:
        """Elements of an operand's row in the 128 bytes that the copy engine takes at once."""
        return 128 // dtype_bytes(self.dtype)

    def is_whole(self, operand: Buffer) -> bool:
        """Return whether an operand of what is fused is as large as the result."""
        if self.rows is not None:
            return len(operand.shape) > 1
        return prod(int(size) for size in operand.shape) >= self.batch * self.m * self.n

    def row_tiles(self, rows: int) -> int:
        """Return the tiles of `rows` rows that cover the rows of one product."""
        return ceil(self.m / rows)


def match(func: PrimFunc, *, ragged: bool = False, at_call: bool = False) -> Gemm | Declined:
    """Return the product in `func`, or why it is none that the tensor cores take.

    `ragged`: of floats, of any sizes; with it, or `at_call`, its rows may be known at the call alone.
    """
    parameters = static_parameters(func)
    if parameters is None and not ragged and not at_call:
        return Declined("its sizes are symbolic")
    found = contraction.find(func)
    if isinstance(found, Declined):
        return found
    symbols: tuple[Var, ...] = ()
    rows: Any = None
    if parameters is None:
        found, parameters = _with_rows(found), [param for param in func.params if tirx.is_buffer_var(param)]
        rows = found.size(found.m)
        symbols = tuple(tir.variables(rows)) if tir.as_int(rows) is None else ()
        fixed = (*found.b, *found.n, *found.k)
        if not symbols or any(tir.as_int(found.extents[axis]) is None for axis in fixed) or found.b:
            return Declined("sizes other than its rows are symbolic")
    kinds = (*LOW, WIDE) if ragged else BYTES if found.dtype == "int32" else (FP8,) if FP8 in found.operands else LOW
    operands = [_operand(value, kinds, found.dtype) for value in (found.left, found.right)]
    if any(operand is None for operand in operands):
        others = "" if ragged else ", 8-bit floats or bytes"
        return Declined(f"its operands are not plain elements of {'floats' if ragged else '16-bit floats'}{others}")
    a, b = (operand for operand in operands if operand is not None)
    if not all(any(load.source.same_as(buffer) for buffer in parameters) for load in (a, b)):
        return Declined("an operand is computed in the same PrimFunc")
    sizes = [
        int(found.size(axes)) if axes is not found.m or not symbols else _GUESSED_ROWS
        for axes in (found.b, found.m, found.n, found.k)
    ]
    if str(a.source.dtype) != str(b.source.dtype) and kinds is not BYTES:
        return Declined("its operands have two dtypes")
    batch, m, n, k = sizes
    if str(a.source.dtype) == WIDE and k < LEAST_DEPTH:
        return Declined(f"its sums of fp32 are of fewer than {LEAST_DEPTH} products")
    if not ragged and (n % 8 or k % 8 or (kinds is not LOW and not takes_bytes(k, n))):
        return Declined("its columns or its sums are not in multiples of 8, which the copy engine needs: 16 of bytes")
    if batch * max(m * k, k * n, m * n) >= _MAX_ELEMENTS:
        return Declined("an operand has 2^31 elements or more")
    if not _is_row_major(a, found, (*found.b, *found.m, *found.k)):
        return Declined("the left operand is not stored by rows")
    n_major = _is_row_major(b, found, (*found.b, *found.k, *found.n))
    if not n_major and not _is_row_major(b, found, (*found.b, *found.n, *found.k)):
        return Declined("the right operand is stored neither by rows nor by columns")
    if n_major and not ragged and kinds is not LOW:
        return Declined("the right operand is of 8 bits by rows, which the tensor cores do not turn")
    sized = [axis for axis in found.m if symbols and tir.as_int(found.extents[axis]) is None]
    texts = {axis: f"operands.e{at}" for at, axis in enumerate(sized)}
    fields = (ROWS, *(f"e{at}" for at in range(len(sized))))
    axes = Axes(found.b, found.m, found.n, found.extents, found.origin, texts)
    try:
        names = {var: f"operands.s{at}" for at, var in enumerate(symbols)}
        fused = epilogue_of(func, found.block, axes, pairs=n % 2 == 0, symbols=names, fields=fields)
    except Unsupported as error:
        return Declined(str(error))
    run_time: dict[str, Any] = (
        {"rows": rows, "sizes": (rows, *(found.extents[axis] for axis in sized), *symbols)} if symbols else {}
    )
    return Gemm(
        batch, m, n, k, n_major, a.source, b.source, fused.out, fused.text, fused.operands, fused.expensive,
        in_tf32=is_in_tf32(func, str(a.source.dtype)), **run_time,
    )  # fmt: skip


def _with_rows(c: Contraction) -> Contraction:
    """The contraction with the axes that its right operand does not have among the rows."""
    shared = tuple(axis for axis in c.b if tir.uses(c.right, [axis]))
    rows = tuple(axis for axis in (*c.b, *c.m) if not any(axis.same_as(other) for other in shared))
    return replace(c, b=shared, m=rows)


def is_in_tf32(func: PrimFunc, dtype: str) -> bool:
    """Return whether products of operands of `dtype` in `func` may be rounded to tf32."""
    return dtype == WIDE and func.attrs is not None and TF32 in func.attrs


def _operand(value: Expr, kinds: Sequence[str], dtype: str) -> TensorLoad | None:
    """The load behind `cast(load)`, of one of the dtypes `kinds`: to `dtype`, as another between may not hold it."""
    while isinstance(value, tirx.Cast) and str(value.ty.dtype) == dtype:
        value = value.value
    return value if isinstance(value, TensorLoad) and str(value.source.dtype) in kinds else None


def _is_row_major(load: TensorLoad, c: Contraction, axes: Sequence[Var]) -> bool:
    """Whether `lies_by` holds, and the buffer has no other element."""
    sizes = tir.product(list(load.source.shape)) - tir.product([c.extents[axis] for axis in axes])
    return tir.as_int(tir.simplify(sizes)) == 0 and lies_by(load, c, axes)


def lies_by(load: TensorLoad, c: Contraction, axes: Sequence[Var]) -> bool:
    """Return whether the load's position in its buffer is that of `axes`, row-major."""
    at = tir.flatten(list(load.indices), list(load.source.shape))
    wanted = tir.flatten(list(axes), [c.extents[axis] for axis in axes])
    return tir.as_int(tir.simplify(at - wanted, {axis: c.extents[axis] for axis in axes})) == 0
