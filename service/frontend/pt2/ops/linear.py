"""Matrix products: operands in the node's dtype, accumulated in float32 for 16-bit floats."""

from __future__ import annotations

from typing import Any

from tvm import relax

from relaxc.service.frontend.pt2.emit import HALF, Emitter
from relaxc.service.frontend.pt2.ops.registry import converts

__all__ = ["matmul"]

op = relax.op


def matmul(em: Emitter, a: Any, b: Any, dtype: str) -> Any:
    """Return a @ b by numpy's rules, in `dtype`."""
    if dtype in HALF:
        return em.cast(em(op.matmul(a, b, out_dtype="float32")), dtype)
    if dtype == "bool":
        raise em.refuse("a matrix product of booleans")
    return em(op.matmul(a, b))


@converts("aten.matmul.default", keep=True)
def _matmul(em: Emitter, a: Any, b: Any) -> Any:
    return matmul(em, a, b, em.out_dtype())


@converts("aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
def _mm(em: Emitter, a: Any, b: Any) -> Any:
    return matmul(em, a, b, em.out_dtype())


@converts("aten.linear.default", keep=True)
def _linear(em: Emitter, x: Any, weight: Any, bias: Any = None) -> Any:
    """y[..., n] = sum_k x[..., k] * weight[n, k] + bias[n]."""
    if em.rank(weight) == 2:
        weight = em.permute(weight, [1, 0])
    result = matmul(em, x, weight, em.out_dtype())
    return result if bias is None else em(op.add(result, bias))


def _affine(em: Emitter, bias: Any, product: Any, beta: Any, alpha: Any) -> Any:
    dtype = em.out_dtype()
    if alpha != 1:
        product = em(op.multiply(product, em.tensor(alpha, dtype)))
    if beta == 0:
        return product
    if beta != 1:
        bias = em(op.multiply(bias, em.tensor(beta, dtype)))
    return em(op.add(product, bias))


@converts("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default")
def _addmm(em: Emitter, bias: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * bias + alpha * (a @ b)."""
    return _affine(em, bias, matmul(em, a, b, em.out_dtype()), beta, alpha)
