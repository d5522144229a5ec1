"""What the layout pass makes of products of 8 bits: the right operand by columns, as the tensor cores read them."""

from __future__ import annotations

from tvm import te

from relaxc.schedules.ir.dtypes import is_float

__all__ = ["by_columns", "takes_bytes"]


def takes_bytes(depth: int, columns: int) -> bool:
    """Return whether the copy engine takes bytes of these sizes: rows of A in 16 bytes, and of the result in 8."""
    return depth > 0 and depth % 16 == 0 and columns > 0 and columns % 8 == 0


def by_columns(left: te.Tensor, right: te.Tensor) -> te.Tensor:
    """Compute `C[..., m, n] += A[..., m, k] * B[n, k]`: of bytes in int32, of floats in fp32."""
    dtype = "float32" if is_float(str(left.dtype)) else "int32"
    k = te.reduce_axis((0, right.shape[1]), name="k")
    return te.compute(
        (*left.shape[:-1], right.shape[0]),
        lambda *at: te.sum(left[(*at[:-1], k)].astype(dtype) * right[at[-1], k].astype(dtype), axis=k),
        name="matmul",
    )
