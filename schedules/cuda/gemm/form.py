"""What a PrimFunc multiplies: `out[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])` with 16-bit operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from schedules.cuda.common.expression import LOW, Pair, Unsupported, Writer, operands_text
from schedules.ir import contraction, tir
from schedules.ir.contraction import Contraction
from schedules.template import Declined

__all__ = ["Gemm", "match"]

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
    a: Any
    b: Any
    out: Any
    epilogue: str
    operands: tuple[Any, ...]
    expensive: bool

    @property
    def dtype(self) -> str:
        """The operands' dtype, float16 or bfloat16."""
        return str(self.a.dtype)


def match(func: Any) -> Gemm | Declined:
    """The product in `func`, or why it is none that the tensor cores take."""
    parameters = [param for param in func.params if tirx.is_buffer_var(param)]
    if len(parameters) != len(func.params) or any(tir.as_int(dim) is None for p in parameters for dim in p.shape):
        return Declined("its sizes are symbolic")
    found = contraction.find(func)
    if isinstance(found, Declined):
        return found
    operands = [_operand(value) for value in (found.left, found.right)]
    if any(operand is None for operand in operands):
        return Declined("its operands are not plain elements of 16-bit floats")
    a, b = (operand for operand in operands if operand is not None)
    if not all(any(load.source.same_as(buffer) for buffer in parameters) for load in (a, b)):
        return Declined("an operand is computed in the same PrimFunc")
    sizes = [int(found.size(axes)) for axes in (found.b, found.m, found.n, found.k)]
    if str(a.source.dtype) != str(b.source.dtype):
        return Declined("its operands have two dtypes")
    batch, m, n, k = sizes
    if n % 8 or k % 8:
        return Declined("its columns or its sums are not in multiples of 8, which the copy engine needs")
    if batch * max(m * k, k * n, m * n) >= _MAX_ELEMENTS:
        return Declined("an operand has 2^31 elements or more")
    if not _is_row_major(a, found, (*found.b, *found.m, *found.k)):
        return Declined("the left operand is not stored by rows")
    n_major = _is_row_major(b, found, (*found.b, *found.k, *found.n))
    if not n_major and not _is_row_major(b, found, (*found.b, *found.n, *found.k)):
        return Declined("the right operand is stored neither by rows nor by columns")
    return _with_epilogue(func, found, sizes, n_major, a.source, b.source)


def _operand(value: Any) -> Any | None:
    """The load behind `cast(load)`, of a 16-bit float."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return value if isinstance(value, TensorLoad) and str(value.source.dtype) in LOW else None


def _is_row_major(load: Any, c: Contraction, axes: Sequence[Any]) -> bool:
    """Whether the load's position in its buffer is that of `axes`, row-major, and it has no other element."""
    extents = [c.extents[axis] for axis in axes]
    at = tir.flatten(list(load.indices), list(load.source.shape))
    wanted = tir.flatten(list(axes), extents)
    whole = int(tir.product(list(load.source.shape))) == int(tir.product(extents))
    return whole and tir.as_int(tir.simplify(at - wanted, {axis: c.extents[axis] for axis in axes})) == 0


def _with_epilogue(func: Any, c: Contraction, sizes: list[int], n_major: bool, a: Any, b: Any) -> Gemm | Declined:
    blocks = [realize.block for realize in tir.block_realizes(func)]
    others = [block for block in blocks if not block.same_as(c.block)]
    if any(block.init is not None or not isinstance(block.body, tirx.BufferStore) for block in others):
        return Declined("what is fused with the product is not elementwise")
    stores = {block.body.buffer: block for block in others}
    outputs = [buffer for buffer in func.params if buffer in stores or buffer.same_as(_sums(c))]
    if len(outputs) != 1 or len(stores) != len(others):
        return Declined(f"it writes {len(outputs)} results, not one")
    try:
        return _described(c, sizes, n_major, a, b, outputs[0], stores)
    except Unsupported as error:
        return Declined(str(error))


def _sums(c: Contraction) -> Any:
    return c.block.body.buffer


def _described(
    c: Contraction, sizes: list[int], n_major: bool, a: Any, b: Any, out: Any, stores: dict[Any, Any]
) -> Gemm:
    batch, m, n, k = sizes
    column = c.n[-1]
    if int(c.extents[column]) != n:
        raise Unsupported("its columns are several axes")
    indices = [tir.substitute(index, c.origin) for index in c.block.body.indices]
    at = tir.flatten(indices, list(_sums(c).shape))
    order = (*c.b, *c.m, *c.n)
    if tir.as_int(tir.simplify(at - tir.flatten(order, [c.extents[axis] for axis in order]), c.extents)) != 0:
        raise Unsupported("its result is not stored by rows")
    if [int(dim) for dim in out.shape] != [int(dim) for dim in _sums(c).shape]:
        raise Unsupported("its epilogue changes the shape")
    axes = {**_unflattened("b", c.b, c), **_unflattened("m", c.m, c), column: Pair("n", "(n + 1)")}

    def inner(load: Any) -> Any:
        block = stores.get(load.source)
        return _value_at(block, load.indices) if block is not None else None

    def is_sum(load: Any) -> bool:
        if not load.source.same_as(_sums(c)):
            return False
        if not all(tir.same(tir.simplify(x), tir.simplify(y)) for x, y in zip(load.indices, indices, strict=True)):
            raise Unsupported("its epilogue reads the sums at other places than it writes")
        return True

    fast = str(out.dtype) in LOW
    if not fast and str(out.dtype) != "float32":
        raise Unsupported(f"its result is {out.dtype}")
    writer = Writer(axes, column, inner, is_sum, fast=fast)
    value = tirx.BufferLoad(_sums(c), indices) if out.same_as(_sums(c)) else _value_at(stores[out], indices)
    if isinstance(value, tirx.Cast) and str(value.ty.dtype) == str(out.dtype) and fast:
        value = value.value if str(value.value.ty.dtype) == "float32" else value  # the store rounds
    result = writer.write(value)
    body = "".join(f"  {line}\n" for line in writer.statements)
    text = (
        operands_text(writer.operands)
        + "DEV float2 epilogue(float2 sums, int b, int m, int n, const Operands& operands) {\n"
        + f"{body}  return make_float2({result.x}, {result.y});\n}}\n"
    )
    return Gemm(batch, m, n, k, n_major, a, b, out, text, tuple(writer.operands), writer.expensive)


def _value_at(block: Any, indices: Sequence[Any]) -> Any:
    """What `block` stores at `indices`; it must write at its own axes."""
    store = block.body
    values: dict[Any, Any] = {}
    for index, wanted in zip(store.indices, indices, strict=True):
        if isinstance(index, tirx.Var):
            values[index] = wanted
        elif tir.as_int(index) != tir.as_int(tir.simplify(wanted)):
            raise Unsupported("its epilogue does not write at plain indices")
    return tir.substitute(store.value, values)


def _unflattened(name: str, axes: Sequence[Any], c: Contraction) -> dict[Any, Pair]:
    """The text of each axis of a group from the group's position `name`."""
    found: dict[Any, Pair] = {}
    stride = 1
    for axis in reversed(axes):
        extent = int(c.extents[axis])
        text = name if stride == 1 else f"{name} / {stride}"
        text = text if axis is axes[0] else f"({text}) % {extent}"
        found[axis] = Pair(f"({text})", f"({text})")
        stride *= extent
    return found
