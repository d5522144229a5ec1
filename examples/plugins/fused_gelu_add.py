"""A hand-written kernel for `gelu(a) + b`, where both are tensors: the pipeline takes it as it is.

    relaxc compile model.onnx --plugin examples/plugins/fused_gelu_add.py

The pipeline fuses these two itself. This shows the whole way for a kernel that it would not find: a pattern over
two operators, a PrimFunc in TVMScript with one symbolic size, and reshapes (which cost nothing) around it so that one
PrimFunc does for tensors of every rank. GELU is the exact one, `x/2 (1 + erf(x/√2))`.
"""

import math

from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script import tirx as T

SQRT_HALF = math.sqrt(0.5)


@T.prim_func(private=True, s_tir=True)
def gelu_add(a: T.handle, b: T.handle, y: T.handle):
    """`Y[i] = gelu(A[i]) + B[i]` for float32 vectors of one length."""
    T.func_attr({"tirx.noalias": True})
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i in range(n):
        with T.sblock("gelu_add"):
            v = T.axis.spatial(n, i)
            Y[v] = A[v] * T.float32(0.5) * (T.float32(1) + T.erf(A[v] * T.float32(SQRT_HALF))) + B[v]


a, b = wildcard(), wildcard()
gelu = is_op("relax.nn.gelu")(a)
sum_ = is_op("relax.add")(gelu, b) | is_op("relax.add")(b, gelu)


def replace(matched, parts, ops):
    """The kernel on the flat tensors, or None where they are not float32 of one shape."""
    left, right = parts[a], parts[b]
    shape = left.ty.shape
    if str(matched.ty.dtype) != "float32" or shape is None or list(map(str, shape)) != list(map(str, right.ty.shape)):
        return None
    count = math.prod(shape)
    flat = relax.TensorType([count], "float32")
    joined = ops("gelu_add", [relax.op.reshape(left, [count]), relax.op.reshape(right, [count])], out=flat)
    return relax.op.reshape(joined, matched.ty.shape)


PRIM_FUNCS = {"gelu_add": gelu_add}
PATTERNS = [(sum_, replace)]
