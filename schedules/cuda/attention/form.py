"""What attention computes in a PrimFunc, and where its operands lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from tvm import tirx
from tvm.error import InternalError
from tvm.ir import TensorLoad

from relaxc.schedules.cuda.attention.logit import Logit, logit_of
from relaxc.schedules.cuda.attention.open_heads import open_heads_of, open_place_of
from relaxc.schedules.cuda.attention.strides import Heads, heads_of, place_of
from relaxc.schedules.cuda.common.expression import BYTES, LOW, Unsupported, Writer
from relaxc.schedules.cuda.common.sizes import buffers_of, known_or, symbols_of, unbound_size
from relaxc.schedules.ir import positions, tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Size, Var
from relaxc.schedules.template import Declined

__all__ = ["MASKED", "Attention", "match"]

MASKED = "relaxc.masked_rows"
"""The PrimFunc's attribute that says what a row without a softmax gets: see `relaxc.schedules.cpu.attention.form`."""

_MAX_ELEMENTS = 1 << 30
_MAX_HEAD = 256
_SCORES, _LOGITS, _WEIGHTS, _ROUNDED, _VALUES, _OUT = (
    f"attention_{name}" for name in ("scores", "logits", "weights", "rounded", "values", "out")
)


@dataclass(frozen=True)
class Attention:
    """`out[b, h, m, :] = sum over n of softmax over n of logit(q[b, h, m, :] · k[b, h / group, n, :]) * v[…, n, :]`.

    `q`, `k`, `v` are of the 16-bit `dtype`, `head` columns a row; `masked` as in `relaxc.schedules.cpu.attention.form`.
    Batch, queries and keys may be known at the call alone: there are `symbols` then.
    """

    batch: Size
    heads: int
    group: int
    queries: Size
    keys: Size
    head: int
    dtype: str
    masked: str
    q: Heads
    k: Heads
    v: Heads
    out: Heads
    logit: Logit
    packed: bool = False
    """Whether its queries are heads that share keys, of one query each: what a logit asks of a head, these are."""
    rounded: str = ""
    """CUDA text of the function `rounded`, of two weights before they are multiplied; '' where they stay."""
    finish: str = ""
    """CUDA text of the function `finish`, of two sums before they are stored; '' where they are only cast."""
    operands: tuple[Buffer, ...] = ()
    """What these, the logit and the tables of pages read: the fields of the struct Operands, in order."""

    symbols: tuple[Var, ...] = ()

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """What Operands has behind the pointers where sizes are known at the call: `AT_CALL`, then the symbols."""
        if not self.symbols:
            return ()
        strides = [size for at in (self.q, self.k, self.v, self.out) for size in (at.heads, at.batches)]
        return (*map(tir.size, (self.batch, self.queries, self.keys, *strides)), *self.symbols)

    def guessed(self) -> Attention:
        """Return the attention with numbers for the sizes that are known at the call, by which its tile is chosen."""
        if not self.symbols:
            return self
        queries, keys = (_guess(size, 256) for size in (self.queries, self.keys))
        return replace(self, batch=_guess(self.batch, 8), queries=queries, keys=keys, symbols=())

    @property
    def is_paged(self) -> bool:
        """Whether keys or values lie in pages."""
        return self.k.pages is not None or self.v.pages is not None

    def blocks(self, block: int, queries: int) -> int:
        """Return the blocks of `block` keys that the first `queries` queries see."""
        blocks, causal = ceil(self.keys / block), self.logit.causal
        if causal is None:
            return blocks
        return min(blocks, max(1, ceil((queries + causal) / block)))


def _guess(size: Size, otherwise: int) -> int:
    known = tir.as_int(size)
    return otherwise if known is None else known


def match(func: PrimFunc) -> Attention | Declined:
    """Return the attention in `func`, or why it is none that the kernel takes."""
    masked = None if func.attrs is None else func.attrs.get(MASKED)
    blocks = {str(realize.block.name_hint): realize.block for realize in block_realizes(func)}
    if masked is None or not {_SCORES, _VALUES, _OUT} <= set(blocks):
        return Declined("it is not attention")
    if reason := unbound_size(func):
        return Declined(reason)
    symbols = symbols_of(func)
    counts = [tir.as_int(tir.product(list(p.shape))) for p in buffers_of(func)]
    if any(count is not None and count >= _MAX_ELEMENTS for count in counts):
        return Declined("an operand has 2^30 elements or more")
    scores, values = blocks[_SCORES], blocks[_VALUES]
    queries, keys, head = (known_or(iv.dom.extent) for iv in scores.iter_vars[-3:])
    width = known_or(values.iter_vars[-2].dom.extent)
    extents = [iv.dom.extent for block in (scores, values) for iv in block.iter_vars]
    if len(tir.uses(extents, symbols)) < len(tir.variables(extents)):
        return Declined("a size is that of no operand")
    if not isinstance(head, int) or not isinstance(width, int):
        return Declined("the columns of its heads are known at the call alone")
    if head != width or head % 8 or head > _MAX_HEAD:
        return Declined(f"its heads have {head} and {width} columns, not the same multiple of 8 up to {_MAX_HEAD}")
    loads = [_load(each) for each in (scores.body.value.b.a, scores.body.value.b.b, values.body.value.b.b)]
    if any(load is None for load in loads) or len({str(load.source.dtype) for load in loads if load is not None}) > 1:
        return Declined("its operands are not plain elements of one 16-bit type of floats")
    *batch, m, n, d = _axes(scores)
    *also, _, e, reduced = _axes(values)
    q, k, v = (load for load in loads if load is not None)
    find: Any = open_place_of if symbols else place_of
    places: dict[str, Any] = {
        "q": find(q.source, q.indices, dict(batch), m, d),
        "k": find(k.source, k.indices, dict(batch), n, d),
        "v": find(v.source, v.indices, dict(also), reduced, e),
        "out": _result(blocks[_OUT], also, m[1], e[1], find),
    }
    for place in places.values():
        if isinstance(place, Declined):
            return place
    of = {"q": batch, "k": batch, "v": also, "out": also}
    found = open_heads_of(places, of) if symbols else heads_of(places, head)
    if isinstance(found, Declined):
        return found
    batches, heads, group, strides = found
    if strides["out"].row_at or strides["out"].head_at:
        return Declined("its result does not begin where its tensor does")
    if strides["q"].pages is not None:
        return Declined("its queries lie in pages")
    try:
        logit = logit_of(blocks[_LOGITS], scores.body.buffer, symbols) if _LOGITS in blocks else Logit()
        operands = list(logit.operands)
        rounded = _rounded(blocks[_ROUNDED], blocks[_WEIGHTS].body.buffer, operands) if _ROUNDED in blocks else ""
        finish = _finish(blocks[_OUT], values.body.buffer, operands)
        tables = (each.pages.table for each in (strides["k"], strides["v"]) if each.pages is not None)
        operands += [table for table in tables if not any(table.same_as(other) for other in operands)]
    except Unsupported as error:
        return Declined(str(error))
    if symbols and (rounded or finish):
        return Declined("it is quantized, and sizes are known at the call alone")
    return Attention(
        batches, heads, group, queries, keys, head, str(q.source.dtype), str(masked),
        q=strides["q"], k=strides["k"], v=strides["v"], out=strides["out"], logit=logit, rounded=rounded,
        finish=finish, operands=tuple(operands), symbols=symbols,
    )  # fmt: skip


def _axes(block: SBlock) -> list[tuple[Var, Any]]:
    return [(iv.var, known_or(iv.dom.extent)) for iv in block.iter_vars]


def _load(value: Expr) -> TensorLoad | None:
    """The load behind `cast(load)`, of a 16-bit float."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return value if isinstance(value, TensorLoad) and str(value.source.dtype) in LOW else None


def _result(block: SBlock, batch: Sequence[tuple[Var, Any]], queries: Size, width: int, find: Any) -> Any:
    """Where the result of (batch, m, e) is stored: the axes of the last block solved for what it loads at."""
    out = block.body
    loads = tir.loads(out.value)
    if not loads or str(out.buffer.dtype) not in (*LOW, "float32", *BYTES):
        return Declined("its result is not a movement of heads")
    value = loads[0]
    axes = [iv.var for iv in block.iter_vars]
    m, e = tirx.Var("m", "int64"), tirx.Var("e", "int64")
    wanted = [*(var for var, _ in batch), m, e]
    try:
        places = _inverse(block, value.indices, wanted) if find is open_place_of else None
        if places is None:
            inverse = tirx.IndexMap(axes, list(value.indices), None).inverse([iv.dom for iv in block.iter_vars])
            places = inverse.map_indices(wanted)
    except InternalError:  # how TVM says that it finds no inverse
        return Declined("its result is not a movement of heads")
    indices = [tir.substitute(index, dict(zip(axes, places, strict=True))) for index in out.indices]
    return find(out.buffer, indices, dict(batch), (m, queries), (e, width))


def _inverse(block: SBlock, indices: Sequence[Expr], wanted: Sequence[Var]) -> list[Expr] | None:
    """What the axes are where the indices are as wanted, if each index is an axis, or part of one that is divided.

    `(a, b // 64, b % 64) → (a, b) = (i, j * 64 + k)`; TVM finds no inverse where extents are symbols.
    """
    found: list[Expr] = []
    bounds = {iv.var: known_or(iv.dom.extent) for iv in block.iter_vars}
    indices = [positions.simplify(index, bounds) for index in indices]
    for axis in bounds:
        terms = [at for at, index in enumerate(indices) if tir.uses(index, [axis])]
        value: Expr = tir.zero(axis)
        for at in terms:
            index = indices[at]
            if tir.same_var(index, axis):
                value = value + wanted[at]
            elif isinstance(index, tirx.FloorDiv | tirx.FloorMod) and tir.same_var(index.a, axis):
                by = tir.as_int(index.b)
                if by is None or len(terms) != 2:
                    return None
                value = value + (wanted[at] * by if isinstance(index, tirx.FloorDiv) else wanted[at])
            else:
                return None
        found.append(value)
    return found


def _rounded(block: SBlock, weights: Buffer, operands: list[Buffer]) -> str:
    """The function `rounded` of the block that stores weights anew. Raise Unsupported."""
    signature = "DEV float2 rounded(float2 sums, const Operands& operands)"
    return _elementwise(signature, block.body.value, weights, "float2", operands)


def _finish(block: SBlock, sums: Buffer, operands: list[Buffer]) -> str:
    """The function `finish` of the block that stores the result, '' where it casts alone. Raise Unsupported."""
    value = block.body.value
    if str(value.ty.dtype) in LOW and isinstance(value, tirx.Cast):  # the store rounds
        value = value.value
    if isinstance(value, TensorLoad):
        return ""
    pair = "int2" if str(value.ty.dtype) in BYTES else "float2"
    return _elementwise(f"DEV {pair} finish(float2 sums, const Operands& operands)", value, sums, pair, operands)


def _elementwise(signature: str, value: Expr, source: Buffer, pair: str, operands: list[Buffer]) -> str:
    """The function of one element of `source`, and of numbers, which join `operands`. Raise Unsupported."""
    loads = tir.loads(value)
    first, *others = (load for load in loads if load.source.same_as(source))
    numbers = [load for load in loads if not load.source.same_as(source)]
    if any(not tir.same(first, other) for other in others) or any(map(_varies, numbers)):
        raise Unsupported("it computes with several elements at once")
    column = tirx.Var("n", "int64")
    writer = Writer({}, column, lambda load: None, lambda load: load.source.same_as(source), fast=True)
    writer.operands = operands
    return writer.function(signature, value, pair)


def _varies(load: TensorLoad) -> bool:
    return any(tir.as_int(index) is None for index in load.indices)
