"""`gelu(a) + b` in Triton, for fused_gelu_add.py beside it; nothing here is of relaxc."""

import triton
import triton.language as tl


@triton.jit
def gelu(x):
    """`x/2 (1 + erf(x/√2))`."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_add(a_ptr, b_ptr, y_ptr, count, BLOCK: tl.constexpr):
    """`Y[i] = gelu(A[i]) + B[i]`, computed in float32 and rounded once."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    a = tl.load(a_ptr + at, mask=inside).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside).to(tl.float32)
    tl.store(y_ptr + at, gelu(a) + b, mask=inside)
