"""What becomes of a score before the softmax: a factor, a causal mask, or CUDA text for anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.cuda.common.expression import Pair, Unsupported, Writer
from relaxc.schedules.cuda.common.sizes import known_or
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, Expr, SBlock, Size, Var

__all__ = ["Logit", "logit_of"]


@dataclass(frozen=True)
class Logit:
    """`score * scale`, for keys up to `query + causal` only; or `text`, the function `logit`.

    Where there is text, the scale is in it.
    """

    scale: float = 1.0
    causal: int | None = None
    text: str = ""
    operands: tuple[Buffer, ...] = ()


def logit_of(block: SBlock, scores: Buffer, symbols: Sequence[Var] = ()) -> Logit:
    """Return the logit that `block` stores of the buffer `scores`; `symbols`: sizes at the call. Raise Unsupported."""
    *batch, m, n = [iv.var for iv in block.iter_vars]
    bounds = {iv.var: known_or(iv.dom.extent) for iv in block.iter_vars}
    if not all(map(tir.same_var, block.body.indices, (*batch, m, n))):
        raise Unsupported("its logits are stored in another order than its scores")
    for load in tir.loads(block.body.value):
        same = load.source.same_as(scores)
        if same and not all(map(tir.same_var, load.indices, (*batch, m, n))):
            raise Unsupported("a logit is made of other scores than its own")
    value, causal = _causal(block.body.value, m, n)
    scale = _factor(value, scores)
    if scale is not None and scale > 0:
        return Logit(scale=scale, causal=causal)
    column = n
    if symbols:
        index = _open_places(batch, bounds, symbols) | {m: Pair("m", "m"), n: Pair("n", "next")}
    else:
        index = {**_places(batch, bounds), m: Pair("(m * !PACKED)", "(m * !PACKED)"), n: Pair("n", "next")}
    is_even = isinstance(bounds[n], int) and bounds[n] % 2 == 0
    writer = Writer(
        index, column, lambda load: None, lambda load: load.source.same_as(scores), fast=True, pairs=is_even
    )
    signature = "DEV float2 logit(float2 sums, int b, int h, int m, int n, int next, const Operands& operands)"
    function = writer.function(signature, value)
    return Logit(causal=causal, text=function, operands=tuple(writer.operands))


def _causal(value: Expr, m: Var, n: Var) -> tuple[Expr, int | None]:
    """The value under `n <= m + offset ? value : -inf`, and the offset."""
    if not isinstance(value, tirx.Select) or not isinstance(value.condition, tirx.LE | tirx.LT):
        return value, None
    other, condition = value.false_value, value.condition
    hidden = isinstance(other, tirx.FloatImm) and float(other.value) == -inf
    if not hidden or any(str(side.ty.dtype) != str(n.ty.dtype) for side in (condition.a, condition.b)):
        return value, None
    offset = tir.as_int(tir.simplify(condition.b - m + n - condition.a))
    if offset is None:
        return value, None
    return value.true_value, offset - isinstance(condition, tirx.LT)


def _factor(value: Expr, scores: Buffer) -> float | None:
    """The factor in `score * factor`, 1 for the score itself."""
    if isinstance(value, TensorLoad):
        return 1.0 if value.source.same_as(scores) else None
    if isinstance(value, tirx.Mul):
        for one, other in ((value.a, value.b), (value.b, value.a)):
            if isinstance(one, TensorLoad) and one.source.same_as(scores) and isinstance(other, tirx.FloatImm):
                return float(other.value)
    return None


def _open_places(batch: Sequence[Var], bounds: Mapping[Var, Size], symbols: Sequence[Var]) -> dict[Var, Pair]:
    """The same of one batch and its heads, 64-bit numbers, and of the sizes."""
    texts = {var: f"operands.s{i}" for i, var in enumerate(symbols)}
    heads = batch[-1:] if batch and isinstance(bounds[batch[-1]], int) else []
    outer = batch[: len(batch) - len(heads)]
    texts |= dict.fromkeys(heads, "(long long)h")
    texts |= {var: "0" if bounds[var] == 1 else "(long long)b" for var in outer}
    return {var: Pair(f"({text})", f"({text})") for var, text in texts.items()}


def _places(batch: Sequence[Var], bounds: Mapping[Var, Any]) -> dict[Var, Pair]:
    """The text of each axis of the batch from the head's number among all; of packed heads, `m` says which."""
    found: dict[Var, Pair] = {}
    stride = 1
    for axis in reversed(batch):
        head = "((b * HEADS + h) * (PACKED ? QUERIES : 1) + (PACKED ? m : 0))"
        text = f"({head} / {stride} % {bounds[axis]})"
        found[axis] = Pair(text, text)
        stride *= bounds[axis]
    return found
