"""Reading attention from the PrimFunc that `relaxc.service.passes.kernels.attention_compute` describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.error import InternalError

from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.dtypes import dtype_bits, is_float
from relaxc.schedules.ir.types import Expr, PrimFunc, SBlock, Size, Stmt, TensorLoad, Var
from relaxc.schedules.template import Declined

__all__ = ["MASKED", "MOST_VECTORS", "Attention", "Blocking", "Index", "Sizes", "attention_of", "mask_room"]

MASKED = "relaxc.masked_rows"
"""The PrimFunc's attribute that says what a row without a softmax gets: see `Attention.masked`."""

Index = Sequence[Expr]

MOST_VECTORS = 4
"""Vectors of queries in a block, at most."""

_SCORES, _LOGITS, _VALUES, _OUT = (f"attention_{name}" for name in ("scores", "logits", "values", "out"))


@dataclass(frozen=True)
class Attention:
    """`out[b, m, e] = sum over n of softmax over n of logit(q[b, m, :] · k[b, n, :]) * v[b, n, e]`.

    Each operand is a function of the indices `b` of the batch and the positions, in `dtype`, whatever it is stored in:
    scores, exponentials and sums are of that type; `queries`, `keys` and the sizes of
    the batch may be symbolic. `masked` says what a row gets whose weights the softmax makes NaN: `nan` as it
    stands; `zero` where all of its scores are -∞; `never_nan` zero, for whatever reason it is NaN.
    """

    batch: tuple[Size, ...]
    queries: Size
    keys: Size
    depth: int
    width: int
    dtype: str
    masked: str
    query: Callable[[Index, Expr, Expr], Expr]
    key: Callable[[Index, Expr, Expr], Expr]
    value: Callable[[Index, Expr, Expr], Expr]
    logit: Callable[[Expr, Index, Expr, Expr], Expr]
    store: Callable[[Expr, Index, Expr, Expr], Stmt]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """`vectors` of `lanes` queries in a block, `keys` in a tile of scores, `rows` in a tile of results; a softmax step
    over `block` keys; `tiles` blocks of queries in a task; `value_lanes` columns of values in a vector."""

    lanes: int
    value_lanes: int
    vectors: int
    keys: int
    rows: int
    block: int
    tiles: int


@dataclass(frozen=True, kw_only=True)
class Blocking(Sizes):
    """Tiles of results are `rows` by `columns` vectors of values; `copies`: a task packs its values once."""

    columns: int
    copies: bool


def attention_of(func: PrimFunc, cpu: Cpu) -> Attention | Declined:
    """Return what `func` computes, if it is attention; vectors of queries may read masks.

    Blocks: `attention_scores[b…, m, n]` a sum over d of a product, `attention_logits` of each score (may be
    left out), the softmax, `attention_values[b…, m, e]` a sum over n, and `attention_out`, which moves these.
    """
    masked = None if func.attrs is None else func.attrs.get(MASKED)
    blocks = {str(realize.block.name_hint): realize.block for realize in block_realizes(func)}
    if masked is None or not {_SCORES, _VALUES, _OUT} <= set(blocks):
        return Declined("it is not attention")
    scores, values = _Product.of(blocks[_SCORES]), _Product.of(blocks[_VALUES])
    depth, width = tir.as_int(scores.reduced.extent), tir.as_int(values.column.extent)
    if depth is None or width is None:
        return Declined("its heads have a symbolic size")
    dtype = str(blocks[_SCORES].body.buffer.dtype)
    if not is_float(dtype) or dtype != str(blocks[_VALUES].body.buffer.dtype):
        return Declined("its scores and its results are not summed in one type of floats")
    store = _store_of(blocks[_OUT], values)
    if store is None:
        return Declined("its result is not a movement of heads")
    if not _is_contiguous(values):
        return Declined("its values are not contiguous in a head")
    return Attention(
        batch=tuple(axis.extent for axis in values.batch),
        queries=scores.row.extent,
        keys=scores.column.extent,
        depth=depth,
        width=width,
        dtype=dtype,
        masked=str(masked),
        query=scores.left,
        key=scores.right,
        value=lambda batch, n, e: values.right(batch, e, n),
        logit=_logit_of(blocks.get(_LOGITS), blocks[_SCORES], scores, cpu.lanes(dtype_bits(dtype))),
        store=store,
    )


def mask_room(queries: int | None, lanes: int) -> int:
    """Return how many elements must be behind a mask's last query, so that vectors of `lanes` queries may be read."""
    return MOST_VECTORS * lanes - 1 if queries is None else -queries % lanes


@dataclass(frozen=True)
class _Axis:
    var: Var
    extent: Size


@dataclass(frozen=True)
class _Product:
    """`C[b…, i, j] += left(b, i, k) * right(b, j, k)`"""

    batch: tuple[_Axis, ...]
    row: _Axis
    column: _Axis
    reduced: _Axis
    factors: tuple[Expr, Expr]

    @classmethod
    def of(cls, block: SBlock) -> _Product:
        axes = [_Axis(iv.var, tir.product([iv.dom.extent])) for iv in block.iter_vars]
        *batch, row, column, reduced = axes
        product = block.body.value.b
        return cls(tuple(batch), row, column, reduced, (product.a, product.b))

    def left(self, batch: Index, i: Expr, k: Expr) -> Expr:
        return tir.substitute(self.factors[0], self._places(batch) | {self.row.var: i, self.reduced.var: k})

    def right(self, batch: Index, j: Expr, k: Expr) -> Expr:
        return tir.substitute(self.factors[1], self._places(batch) | {self.column.var: j, self.reduced.var: k})

    def _places(self, batch: Index) -> dict[Var, Expr]:
        return {axis.var: at for axis, at in zip(self.batch, batch, strict=True)}


def _is_contiguous(values: _Product) -> bool:
    """Whether the columns of the right factor are next to each other in memory."""
    loads = tir.loads(values.factors[1])
    axes = (*values.batch, values.row, values.column, values.reduced)
    bounds = {axis.var: tir.size(axis.extent) for axis in axes}
    return len(loads) == 1 and tir.steps_by_one(
        tir.flatten(loads[0].indices, loads[0].source.shape), values.column.var, bounds
    )


def _logit_of(
    block: SBlock | None, scores_block: SBlock, scores: _Product, lanes: int
) -> Callable[[Expr, Index, Expr, Expr], Expr]:
    """The logit of a score: what the block `attention_logits` stores, or the score."""
    if block is None:
        return lambda score, batch, m, n: score
    *batch_axes, row, column = [iv.var for iv in block.iter_vars]
    buffer = scores_block.body.buffer
    masks = [load for load in tir.loads(block.body.value) if not load.source.same_as(buffer)]
    covered = all(_covers(load, row, scores.row.extent, lanes) for load in masks)

    def logit(score: Expr, batch: Index, m: Expr, n: Expr) -> Expr:
        value = tir.replace_loads(block.body.value, buffer, lambda load: score)
        m = m if covered else tirx.min(m, scores.row.extent - 1)
        places = dict(zip([*batch_axes, row, column], [*batch, m, n], strict=True))
        return tir.substitute(value, places)

    return logit


def _covers(load: TensorLoad, row: Var, queries: Size, lanes: int) -> bool:
    """Whether a vector of `lanes` queries may be read where the last has only one left: the mask is wide enough."""
    if not tir.uses(list(load.indices), [row]):
        return True
    if not tir.same_var(load.indices[-1], row) or tir.uses(list(load.indices[:-1]), [row]):
        return False
    known, width = tir.as_int(queries), tir.as_int(load.source.shape[-1])
    if known is not None and width is not None:
        return width >= known + mask_room(known, lanes)
    return _at_least(load.source.shape[-1], queries + mask_room(None, lanes))


def _at_least(width: Size, needed: Size) -> bool:
    known = tir.as_int(tir.simplify(tir.size(width) - tir.size(needed)))
    return known is not None and known >= 0


def _store_of(block: SBlock, values: _Product) -> Callable[[Expr, Index, Expr, Expr], Stmt] | None:
    """The store of one result, rounded where the block `attention_out` does, with its axes solved for its indices."""
    axes = [iv.var for iv in block.iter_vars]
    loads = tir.loads(block.body.value)
    value = block.body.value.value if isinstance(block.body.value, tirx.Cast) else block.body.value
    if not analysis.is_injective(block) or len(loads) != 1 or not value.same_as(loads[0]):
        return None
    try:
        inverse = tirx.IndexMap(axes, list(loads[0].indices), None).inverse([iv.dom for iv in block.iter_vars])
    except InternalError:  # how TVM says that it finds no inverse
        return None
    out = block.body

    def store(value: Expr, batch: Index, m: Expr, e: Expr) -> Stmt:
        places = inverse.map_indices([*batch, m, e])
        indices = [tir.substitute(index, dict(zip(axes, places, strict=True))) for index in out.indices]
        return tirx.BufferStore(out.buffer, value.astype(str(out.buffer.dtype)), indices)

    return store
