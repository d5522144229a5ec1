"""What attention computes in a PrimFunc, and where its operands lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tvm import tirx
from tvm.error import InternalError
from tvm.ir import TensorLoad

from schedules.cuda.attention.logit import Logit, logit_of
from schedules.cuda.attention.strides import Heads, Place, heads_of, place_of
from schedules.cuda.common.expression import LOW, Unsupported
from schedules.ir import tir
from schedules.ir.blocks import block_realizes
from schedules.ir.types import Expr, PrimFunc, SBlock, Var
from schedules.template import Declined

__all__ = ["MASKED", "Attention", "match"]

MASKED = "relaxc.masked_rows"
"""The PrimFunc's attribute that says what a row without a softmax gets: see `schedules.cpu.attention.form`."""

_MAX_ELEMENTS = 1 << 30
_MAX_HEAD = 256
_SCORES, _LOGITS, _VALUES, _OUT = (f"attention_{name}" for name in ("scores", "logits", "values", "out"))


@dataclass(frozen=True)
class Attention:
    """`out[b, h, m, :] = sum over n of softmax over n of logit(q[b, h, m, :] · k[b, h / group, n, :]) * v[…, n, :]`.

    `q`, `k`, `v` are of the 16-bit `dtype`, `head` columns a row; `masked` as in `schedules.cpu.attention.form`.
    """

    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    head: int
    dtype: str
    masked: str
    q: Heads
    k: Heads
    v: Heads
    out: Heads
    logit: Logit

    def blocks(self, block: int, queries: int) -> int:
        """Return the blocks of `block` keys that the first `queries` queries see."""
        blocks, causal = ceil(self.keys / block), self.logit.causal
        if causal is None:
            return blocks
        return min(blocks, max(1, ceil((queries + causal) / block)))


def match(func: PrimFunc) -> Attention | Declined:
    """Return the attention in `func`, or why it is none that the kernel takes."""
    masked = None if func.attrs is None else func.attrs.get(MASKED)
    blocks = {str(realize.block.name_hint): realize.block for realize in block_realizes(func)}
    if masked is None or not {_SCORES, _VALUES, _OUT} <= set(blocks):
        return Declined("it is not attention")
    if any(tir.as_int(dim) is None for p in func.params for dim in p.shape):
        return Declined("its sizes are symbolic")
    if any(int(tir.product(list(p.shape))) >= _MAX_ELEMENTS for p in func.params):
        return Declined("an operand has 2^30 elements or more")
    scores, values = blocks[_SCORES], blocks[_VALUES]
    queries, keys, head = (int(iv.dom.extent) for iv in scores.iter_vars[-3:])
    width = int(values.iter_vars[-2].dom.extent)
    if head != width or head % 8 or head > _MAX_HEAD:
        return Declined(f"its heads have {head} and {width} columns, not the same multiple of 8 up to {_MAX_HEAD}")
    loads = [_load(each) for each in (scores.body.value.b.a, scores.body.value.b.b, values.body.value.b.b)]
    if any(load is None for load in loads) or len({str(load.source.dtype) for load in loads if load is not None}) > 1:
        return Declined("its operands are not plain elements of one 16-bit type of floats")
    *batch, m, n, d = _axes(scores)
    *also, _, e, reduced = _axes(values)
    q, k, v = (load for load in loads if load is not None)
    places: dict[str, Place | Declined] = {
        "q": place_of(q.source, q.indices, dict(batch), m, d),
        "k": place_of(k.source, k.indices, dict(batch), n, d),
        "v": place_of(v.source, v.indices, dict(also), reduced, e),
        "out": _result(blocks[_OUT], also, m[1], e[1]),
    }
    for place in places.values():
        if isinstance(place, Declined):
            return place
    found = heads_of(places, head)  # type: ignore[arg-type]
    if isinstance(found, Declined):
        return found
    batches, heads, group, strides = found
    if strides["out"].row_at or strides["out"].head_at:
        return Declined("its result does not begin where its tensor does")
    try:
        logit = logit_of(blocks[_LOGITS], scores.body.buffer) if _LOGITS in blocks else Logit()
    except Unsupported as error:
        return Declined(str(error))
    return Attention(
        batches, heads, group, queries, keys, head, str(q.source.dtype), str(masked),
        q=strides["q"], k=strides["k"], v=strides["v"], out=strides["out"], logit=logit,
    )  # fmt: skip


def _axes(block: SBlock) -> list[tuple[Var, int]]:
    return [(iv.var, int(iv.dom.extent)) for iv in block.iter_vars]


def _load(value: Expr) -> TensorLoad | None:
    """The load behind `cast(load)`, of a 16-bit float."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return value if isinstance(value, TensorLoad) and str(value.source.dtype) in LOW else None


def _result(block: SBlock, batch: Sequence[tuple[Var, int]], queries: int, width: int) -> Place | Declined:
    """Where the result of (batch, m, e) is stored: the axes of the last block solved for what it loads at."""
    out = block.body
    value = out.value.value if isinstance(out.value, tirx.Cast) else out.value
    if not isinstance(value, TensorLoad) or str(out.buffer.dtype) not in (*LOW, "float32"):
        return Declined("its result is not a movement of heads")
    axes = [iv.var for iv in block.iter_vars]
    try:
        inverse = tirx.IndexMap(axes, list(value.indices), None).inverse([iv.dom for iv in block.iter_vars])
    except InternalError:  # how TVM says that it finds no inverse
        return Declined("its result is not a movement of heads")
    m, e = tirx.Var("m", "int64"), tirx.Var("e", "int64")
    places = inverse.map_indices([*(var for var, _ in batch), m, e])
    indices = [tir.substitute(index, dict(zip(axes, places, strict=True))) for index in out.indices]
    return place_of(out.buffer, indices, dict(batch), (m, queries), (e, width))
