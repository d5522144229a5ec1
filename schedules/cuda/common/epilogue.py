"""What is fused with a sum, as CUDA text: the elementwise blocks of a PrimFunc behind its one reduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvm import tirx

from relaxc.schedules.cuda.common.expression import BYTES, FP8, LOW, Pair, Unsupported, Writer, operands_text
from relaxc.schedules.cuda.common.sizes import buffers_of
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Size, TensorLoad, Var

__all__ = ["Axes", "Epilogue", "epilogue_of", "pair_type"]


@dataclass(frozen=True)
class Axes:
    """The spatial axes of a reduction block, in the order of its result: `[b, m, n]`, each group flattened.

    `extents` has the size of each; `origin` gives each spatial variable of the block from the axes. `texts` has
    those of sizes that are known at the call and no symbol.
    """

    b: tuple[Var, ...]
    m: tuple[Var, ...]
    n: tuple[Var, ...]
    extents: Mapping[Var, Size]
    origin: Mapping[Var, Expr]
    texts: Mapping[Var, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Epilogue:
    """The struct `Operands`, with the pointers of `operands`, and the function `epilogue`, which gives what `out` has.

    It takes two sums and gives two results, each as `pair_type` says of their dtype.

    `bring_operands` has what the epilogue reads of 16 columns come into L2.
    `expensive`: it calls exp, erf or the like.
    """

    text: str
    out: Buffer
    operands: tuple[Buffer, ...]
    expensive: bool


def epilogue_of(
    func: PrimFunc,
    block: SBlock,
    axes: Axes,
    *,
    pairs: bool = True,
    or_bytes: bool = False,
    symbols: Mapping[Var, str] | None = None,
    fields: Sequence[str] = ("rows",),
) -> Epilogue:
    """Return what `func` does with the sums of `block`; without `pairs` the first of two columns may be an odd one.

    `symbols` gives the text of sizes that are known at the call; Operands has `fields` then, and these as s0, s1, ….
    Results are floats, with `or_bytes` also bytes, and of sums in int32 also int32. Raise Unsupported.
    """
    blocks = [realize.block for realize in block_realizes(func)]
    others = [other for other in blocks if not other.same_as(block)]
    if any(other.init is not None or not isinstance(other.body, tirx.BufferStore) for other in others):
        raise Unsupported("what is fused with the sum is not elementwise")
    stores = {other.body.buffer: other for other in others}
    sums = block.body.buffer
    outputs = [buffer for buffer in buffers_of(func) if buffer in stores or buffer.same_as(sums)]
    if len(outputs) != 1 or len(stores) != len(others):
        raise Unsupported(f"it writes {len(outputs)} results, not one")
    of_bytes = str(sums.dtype) == "int32"
    integers = ("int32", *BYTES) if of_bytes else BYTES if or_bytes else ()
    return _written(block, axes, outputs[0], stores, pairs, integers, symbols or {}, fields)


def _written(
    block: SBlock,
    axes: Axes,
    out: Buffer,
    stores: dict[Buffer, SBlock],
    pairs: bool,
    integers: Sequence[str],
    symbols: Mapping[Var, str],
    fields: Sequence[str],
) -> Epilogue:
    sums, column = block.body.buffer, axes.n[-1]
    if len(axes.n) > 1 and int(axes.extents[column]) != int(tir.product([axes.extents[axis] for axis in axes.n])):
        raise Unsupported("its columns are several axes")
    indices = [tir.substitute(index, dict(axes.origin)) for index in block.body.indices]
    order = (*axes.b, *axes.m, *axes.n)
    place = tir.flatten(order, [axes.extents[axis] for axis in order])
    if tir.as_int(tir.simplify(tir.flatten(indices, list(sums.shape)) - place, axes.extents)) != 0:
        raise Unsupported("its result is not stored by rows")
    if len(out.shape) != len(sums.shape) or not all(map(tir.same, out.shape, sums.shape)):
        raise Unsupported("its epilogue changes the shape")
    texts = {
        **{var: Pair(text, text) for var, text in symbols.items()},
        **_unflattened("b", axes.b, axes, symbols),
        **_unflattened("(long long)m" if symbols else "m", axes.m, axes, symbols),
        column: Pair("n", "(n + 1)"),
    }

    def inner(load: TensorLoad) -> Expr | None:
        other = stores.get(load.source)
        return _value_at(other, load.indices) if other is not None else None

    def is_sum(load: TensorLoad) -> bool:
        if not load.source.same_as(sums):
            return False
        if not all(tir.same(tir.simplify(x), tir.simplify(y)) for x, y in zip(load.indices, indices, strict=True)):
            raise Unsupported("its epilogue reads the sums at other places than it writes")
        return True

    low = str(out.dtype) in (*LOW, FP8)
    fast = low or str(out.dtype) in BYTES
    if not low and str(out.dtype) not in ("float32", *integers):
        raise Unsupported(f"its result is {out.dtype}")
    places = [(place, axes.extents, _place_text(axes))]
    writer = Writer(texts, column, inner, is_sum, fast=fast, places=places, pairs=pairs)
    value = tirx.BufferLoad(sums, indices) if out.same_as(sums) else _value_at(stores[out], indices)
    if isinstance(value, tirx.Cast) and str(value.ty.dtype) == str(out.dtype) and low:
        value = value.value if str(value.value.ty.dtype) == "float32" else value  # the store rounds
    pair = pair_type(str(out.dtype))
    parameters = f"{pair_type(str(sums.dtype))} sums, int b, int m, int n, const Operands& operands"
    function = writer.function(f"DEV {pair} epilogue({parameters})", value, pair)
    brought = "".join(f"  {line}\n" for line in writer.brought)
    bring = f"DEV void bring_operands(int b, int m, int n, const Operands& operands) {{\n{brought}}}\n"
    sizes = (*fields, *symbols.values()) if symbols else ()
    text = operands_text(writer.operands, sizes) + function + bring
    return Epilogue(text, out, tuple(writer.operands), writer.expensive)


def pair_type(dtype: str) -> str:
    """Return the C type of two values as an epilogue takes and gives them: `float2`, or `int2` of integers."""
    return "int2" if dtype in ("int32", *BYTES) else "float2"


def _place_text(axes: Axes) -> Pair:
    """The position in the result: so an operand of its shape is read without taking `m` apart."""
    columns = int(tir.product([axes.extents[axis] for axis in axes.n]))
    rows = tir.product([axes.extents[axis] for axis in axes.m])
    wide = "" if tir.as_int(rows) is not None else "(long long)"
    text = f"((b * {rows} + m) * {columns} + n" if axes.b else f"({wide}m * {columns} + n"
    return Pair(f"{text})", f"{text} + 1)")


def _value_at(block: SBlock, indices: Sequence[Expr]) -> Expr:
    """What `block` stores at `indices`; it must write at its own axes."""
    store = block.body
    values: dict[Var, Expr] = {}
    for index, wanted in zip(store.indices, indices, strict=True):
        if isinstance(index, tirx.Var):
            values[index] = wanted
        elif tir.as_int(index) != tir.as_int(tir.simplify(wanted)):
            raise Unsupported("its epilogue does not write at plain indices")
    return tir.substitute(store.value, values)


def _unflattened(name: str, axes: Sequence[Var], of: Axes, symbols: Mapping[Var, str]) -> dict[Var, Pair]:
    """The text of each axis of a group from the group's position `name`."""
    found: dict[Var, Pair] = {}
    stride: int | str = 1
    for axis in reversed(axes):
        known = tir.as_int(of.extents[axis])
        extent = known if known is not None else of.texts.get(axis) or symbols.get(of.extents[axis])
        if extent is None:
            raise Unsupported("its rows are computed from sizes")
        text = name if stride == 1 else f"{name} / ({stride})"
        text = text if axis is axes[0] else f"({text}) % {extent}"
        found[axis] = Pair(f"({text})", f"({text})")
        stride = stride * extent if isinstance(stride, int) and isinstance(extent, int) else f"{stride} * {extent}"
    return found
