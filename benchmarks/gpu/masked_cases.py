"""What dlight's generic rules schedule where bools and bytes are read or written: masked scores, comparisons, bytes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.gpu.fused import one_prim_func_of

__all__ = ["KINDS", "MaskedCase", "drawn", "operands", "prim_func"]

KINDS = ("scores", "scores", "full_scores", "compared", "masked", "bytes", "product_of_bytes", "any")
_RULES = ("", "cuda.matmul", "cuda.gemv", "cuda.reduction", "cuda.general_reduction", "cuda.fallback")


@dataclass(frozen=True)
class MaskedCase:
    """`kind` over a batch of `m` by `n`, and `k` in depth for products, from `dtype` to `out`.

    `scores`: `where(mask[b, 1, n], A @ B, f)`, and `full_scores` with a mask for each score. `compared`: `A @ B > f`.
    `masked`: `where(mask, x, f) + y` of any dtype. `bytes`: `x & y | z` of bools as int8. `product_of_bytes`: `A @ B`
    of int8 in int32. `any`: `max(mask, axis=n)` of bools as int8. With `symbolic` the kernel takes any `m`. `rule` is
    asked before the others.
    """

    kind: str
    batch: int
    m: int
    n: int
    k: int
    dtype: str = "float32"
    out: str = "float32"
    symbolic: bool = False
    rule: str = ""


def drawn(chance: random.Random, extent: Any) -> MaskedCase:
    """Return a case whose extents `extent` draws, up to its second argument."""
    kind = chance.choice(KINDS)
    dtype = chance.choice(("float32", "float32", "float16", "bfloat16"))
    if kind == "masked":
        dtype = chance.choice((dtype, "int8", "uint8", "bool", "int64"))
    dtype = {"bytes": "bool", "any": "bool", "product_of_bytes": "int8"}.get(kind, dtype)
    out = {"bytes": "int8", "any": "int8", "product_of_bytes": "int32", "compared": "bool"}.get(kind, dtype)
    batch = chance.choice((1, 1, 2, 3, 12))
    m, n, k = (extent(chance, most) for most in (200, 300, 130))
    return MaskedCase(kind, batch, m, n, k, dtype, out, chance.random() < 0.3, chance.choice(_RULES))


def operands(case: MaskedCase) -> list[tuple[str, tuple[int, ...], str]]:
    """Return the name, the shape and the dtype of each operand."""
    batch, m, n, k = case.batch, case.m, case.n, case.k
    x, mask = ("x", (batch, m, n), case.dtype), ("mask", (batch, m, n), "bool")
    of_elements = {
        "masked": [x, mask, ("y", (n,), case.dtype), *[("f", (), case.dtype)] * (case.dtype != "bool")],
        "bytes": [x, mask, ("z", (batch, 1, n), "bool")],
        "any": [mask],
    }
    if case.kind in of_elements:
        return of_elements[case.kind]
    fill = [("f", (), "float32")] * (case.kind != "product_of_bytes")
    product = [("x", (batch, m, k), case.dtype), ("y", (batch, k, n), case.dtype)]
    masks = {"scores": (batch, 1, n), "full_scores": (batch, m, n)}
    return [*product, *(("mask", masks[kind], "bool") for kind in masks if kind == case.kind), *fill]


def prim_func(case: MaskedCase) -> Any:
    """One PrimFunc of all that `case` computes."""
    from tvm import tirx

    rows = tirx.Var("m", "int64")
    given = operands(case)
    if case.symbolic:
        given = [(name, (*shape[:1], rows, *shape[2:]) if shape[1:2] == (case.m,) and name != "y" else shape, dtype)
                 for name, shape, dtype in given]  # fmt: skip
    return one_prim_func_of(given, partial(_value, case))


def _value(case: MaskedCase, block: Any, given: list[Any]) -> Any:
    from tvm.relax import op

    if case.kind in ("masked", "bytes", "any"):
        return _elements(case, given)
    out_dtype = "int32" if case.kind == "product_of_bytes" else "float32"
    value = op.matmul(given[0], given[1], out_dtype=out_dtype)
    if case.kind == "product_of_bytes":
        return value
    if case.kind == "compared":
        return op.greater(value, given[2])
    value = op.where(given[2], value, given[3])
    return value if case.out == "float32" else op.astype(value, case.out)


def _elements(case: MaskedCase, given: list[Any]) -> Any:
    from tvm.relax import op

    if case.kind == "any":
        return op.max(op.astype(given[0], "int8"), [2])
    if case.kind == "bytes":
        x, mask, z = given
        return op.astype(op.logical_or(op.logical_and(x, mask), z), "int8")
    if case.dtype == "bool":
        x, mask, y = given
        return op.logical_xor(op.logical_and(mask, x), y)
    x, mask, y, fill = given
    return op.add(op.where(mask, x, fill), y)
