"""Products of torch's 8-bit floats (e4m3), with a scale for each operand, or for each of its rows or columns."""

from __future__ import annotations

from typing import Any

from tvm import relax

from relaxc.service.frontend.pt2.emit import FLOAT8, Emitter, torch_dtype
from relaxc.service.frontend.pt2.ops.registry import converts

op = relax.op


@converts("aten._scaled_mm.default")
def _scaled_mm(
    em: Emitter, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, scale_result: Any = None,
    out_dtype: Any = None, use_fast_accum: bool = False,
) -> Any:  # fmt: skip
    """(scale_a * a) @ (scale_b * b) + bias, summed in fp32 however fast it may be."""
    del use_fast_accum
    if scale_result is not None or out_dtype is None or torch_dtype(out_dtype) == FLOAT8:
        raise em.refuse("a result in 8 bits")
    left, right = _dequantized(em, a, scale_a, 0), _dequantized(em, b, scale_b, 1)
    total = em(op.matmul(left, right))
    if bias is not None:
        total = em(op.add(total, em.cast(bias, "float32")))
    return em.cast(total, torch_dtype(out_dtype))


def _dequantized(em: Emitter, x: Any, scale: Any, axis: int) -> Any:
    """The operand in fp32; its scales are one, or one for each index of `axis`."""
    if em.dtype(x) != FLOAT8 or em.dtype(scale) != "float32":
        raise em.refuse(f"operands of {em.dtype(x)} with scales of {em.dtype(scale)}")
    shape = em.static_shape(scale, "a scale")
    if all(size == 1 for size in shape):
        scale = em.reshape(scale, ())
    elif len(shape) == 2 and shape[1 - axis] == 1:
        scale = em.reshape(scale, [shape[axis]])
    else:
        raise em.refuse(f"scales of the shape {shape}")
    return em(op.dequantize(x, scale, em.const(0, "int32"), axis, "float32"))
