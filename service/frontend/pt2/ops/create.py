"""Tensors out of nothing: filled ones, ranges, triangles. What has no symbolic size is computed by torch itself."""

from __future__ import annotations

from typing import Any

from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter, is_prim, prim
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op


def _filled(em: Emitter, value: Any) -> Any:
    dtype = em.out_dtype()
    scalar = em.tensor(value, dtype)
    if em.out_shape() == []:
        return scalar
    if is_prim(value):
        return em.broadcast(scalar, em.out_shape())
    return em(op.full(em.out_shape(), scalar, dtype))


@converts("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def _full(em: Emitter, first: Any, second: Any, *rest: Any) -> Any:
    value = rest[0] if em.node.target.name() == "aten::new_full" else second
    return _filled(em, value)


@converts("aten.fill.Scalar", "aten.fill.Tensor")
def _fill(em: Emitter, x: Any, value: Any) -> Any:
    if isinstance(value, relax.Expr) and not is_prim(value):
        return em.broadcast(em.cast(value, em.out_dtype()), em.out_shape())
    return _filled(em, value)


@converts("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default")
def _zeros(em: Emitter, *_: Any) -> Any:
    return _filled(em, 0)


@converts("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def _ones(em: Emitter, *_: Any) -> Any:
    return _filled(em, 1)


@converts(
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_permuted.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)
def _empty(em: Emitter, *_: Any) -> Any:
    """Zeros: uninitialized memory would make a run depend on the one before."""
    return _filled(em, 0)


@converts("aten.scalar_tensor.default")
def _scalar_tensor(em: Emitter, value: Any, *_: Any) -> Any:
    return em.tensor(value, em.out_dtype())


@converts("aten.arange.start_step")
def _arange(em: Emitter, start: Any, end: Any, step: Any = 1, *_: Any) -> Any:
    if not any(map(is_prim, (start, end, step))):
        return _by_torch(em, (start, end, step))
    if any(isinstance(value, float) for value in (start, end, step)):
        raise em.refuse("a range between fractions whose length is symbolic")
    if not is_prim(step) and step == 1:
        return em.cast(em(op.arange(prim(start), prim(end), prim(1), "int64")), em.out_dtype())
    # As long as torch says: of a range that goes down TVM gets the length wrong.
    places = em(op.arange(prim(0), prim(em.out_shape()[0]), prim(1), "int64"))
    moved = em(op.multiply(places, em.tensor(step, "int64")))
    return em.cast(em(op.add(moved, em.tensor(start, "int64"))), em.out_dtype())


@converts("aten.linspace.default", "aten.eye.default", "aten.eye.m", "aten.tril_indices.default")
def _constant(em: Emitter, *values: Any) -> Any:
    if any(map(is_prim, values)):
        raise em.refuse("a size that is not known when compiling")
    return _by_torch(em, values)


def _by_torch(em: Emitter, values: tuple[Any, ...]) -> Any:
    """The constant that torch computes: its own rounding, which a formula would have to imitate."""
    import torch
    from tvm import runtime

    names = [argument.name for argument in em.node.target._schema.arguments if not argument.kwarg_only]
    with torch.no_grad():
        given = dict(zip(names, values, strict=False))
        result = em.node.target(**given, dtype=em.meta().dtype, device="cpu")
    return relax.const(runtime.from_dlpack(result.contiguous()))


@converts("aten.tril.default", "aten.triu.default", keep=True)
def _triangle(em: Emitter, x: Any, diagonal: int = 0) -> Any:
    """x where column - row <= diagonal (tril) or >= (triu), else zero."""
    rows, columns = em.shape(x)[-2:]
    row = em.reshape(em(op.arange(prim(0), prim(rows), prim(1), "int64")), [rows, 1])
    column = em.reshape(em(op.arange(prim(0), prim(columns), prim(1), "int64")), [1, columns])
    apart = em(op.subtract(column, row))
    lower = em.node.target.name() == "aten::tril"
    keep = em((op.less_equal if lower else op.greater_equal)(apart, em.const(diagonal, "int64")))
    return em(op.where(keep, x, em.const(0, em.dtype(x))))
