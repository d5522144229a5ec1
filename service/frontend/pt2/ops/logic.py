"""Comparison, logic and selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter, torch_dtype
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op


def _compare(name: str, function: Callable[[Any, Any], Any]) -> None:
    @converts(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def convert(em: Emitter, a: Any, b: Any) -> Any:
        import torch

        metas = [arg.meta["val"] if hasattr(arg, "meta") else arg for arg in em.node.args[:2]]
        numbers = [meta if not hasattr(meta, "node") else 0 for meta in metas]  # a size counts as an integer
        dtype = torch_dtype(torch.result_type(*numbers))
        if dtype == "bool":  # LLVM has no comparison of the one-bit values that TVM makes of booleans
            dtype = "int8"
        return em(function(em.tensor(a, dtype), em.tensor(b, dtype)))


for _name, _function in (
    ("eq", op.equal),
    ("ne", op.not_equal),
    ("lt", op.less),
    ("le", op.less_equal),
    ("gt", op.greater),
    ("ge", op.greater_equal),
):
    _compare(_name, _function)


def _logical(name: str, function: Callable[[Any, Any], Any]) -> None:
    @converts(f"aten.logical_{name}.default")
    def convert(em: Emitter, a: Any, b: Any) -> Any:
        return em(function(em.cast(a, "bool"), em.cast(b, "bool")))


def _bitwise(name: str, bits: Callable[[Any, Any], Any], logical: Callable[[Any, Any], Any]) -> None:
    @converts(f"aten.bitwise_{name}.Tensor", f"aten.bitwise_{name}.Scalar", f"aten.__{name}__.Tensor")
    def convert(em: Emitter, a: Any, b: Any) -> Any:
        dtype = em.out_dtype()
        return em((logical if dtype == "bool" else bits)(em.tensor(a, dtype), em.tensor(b, dtype)))


for _name in ("and", "or", "xor"):
    _logical(_name, getattr(op, f"logical_{_name}"))
    _bitwise(_name, getattr(op, f"bitwise_{_name}"), getattr(op, f"logical_{_name}"))


def _shift(side: str) -> None:
    left = side == "left"
    operator, name = f"aten.__{side[0]}shift__", f"aten.bitwise_{side}_shift"

    @converts(f"{operator}.Tensor", f"{operator}.Scalar", f"{name}.Tensor", f"{name}.Tensor_Scalar")
    def convert(em: Emitter, a: Any, b: Any) -> Any:
        """By the width or more, or by less than 0, all bits are shifted out: 0 is left, or the sign."""
        dtype = em.out_dtype()
        a, b = em.tensor(a, dtype), em.tensor(b, dtype)
        width, zero = int(dtype.lstrip("uint")), em.const(0, dtype)
        below = em(op.less(b, em.const(width, dtype)))
        inside = em(op.logical_and(below, em(op.greater_equal(b, zero))))
        shifted = em((op.left_shift if left else op.right_shift)(a, em(op.where(inside, b, zero))))
        is_sign = not left and dtype.startswith("int")
        beyond = em(op.right_shift(a, em.const(width - 1, dtype))) if is_sign else zero
        return em(op.where(inside, shifted, beyond))


_shift("left")
_shift("right")


@converts("aten.logical_not.default")
def _logical_not(em: Emitter, x: Any) -> Any:
    return em(op.logical_not(em.cast(x, "bool")))


@converts("aten.bitwise_not.default")
def _bitwise_not(em: Emitter, x: Any) -> Any:
    return em((op.logical_not if em.dtype(x) == "bool" else op.bitwise_not)(x))


@converts("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def _where(em: Emitter, condition: Any, a: Any, b: Any) -> Any:
    dtype = em.out_dtype()
    return em(op.where(em.cast(condition, "bool"), em.tensor(a, dtype), em.tensor(b, dtype)))


@converts("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(em: Emitter, x: Any, mask: Any, value: Any) -> Any:
    return em(op.where(em.cast(mask, "bool"), em.tensor(value, em.out_dtype()), x))
