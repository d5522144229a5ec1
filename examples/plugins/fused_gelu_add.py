"""Hand-written kernels for `gelu(a) + b`, where both are tensors: the pipeline takes them as they are.

    relaxc compile model.onnx --plugin examples/plugins/fused_gelu_add.py

The pipeline fuses these two itself. This shows the whole way for a kernel that it would not find: a pattern over
two operators, and reshapes (which cost nothing) around it so that one kernel does for tensors of every rank. On CUDA,
where all sizes are known, it is the Triton kernel of gelu_add_triton.py, compiled ahead of time; elsewhere, for
float32, a PrimFunc in TVMScript with one symbolic size. GELU is the exact one, `x/2 (1 + erf(x/√2))`.
"""

import math

from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script import tirx as T

from relaxc import TritonKernel

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


# A 16-bit model computes in float32 inside of its kernels, and rounds what lies between them: hence the casts.
cast = is_op("relax.astype")
a, b = wildcard(), wildcard()
gelu = is_op("relax.nn.gelu")(cast(a) | a)
left, right = cast(cast(gelu)) | gelu, cast(b) | b
sum_ = is_op("relax.add")(left, right) | is_op("relax.add")(right, left)


def replace(matched, parts, ops):
    """A kernel on the flat tensors, or None where they are not of one shape."""
    shape = parts[a].ty.shape
    if shape is None or list(map(str, shape)) != list(map(str, parts[b].ty.shape or ())):
        return None
    count = math.prod(shape)
    flat = relax.TensorType([count], matched.ty.dtype)
    joined = ops("gelu_add", [relax.op.reshape(parts[a], [count]), relax.op.reshape(parts[b], [count])], out=flat)
    return relax.op.reshape(joined, matched.ty.shape)


def of_float32(a, b):
    """The PrimFunc, or None: in other dtypes the match stays as it is."""
    return gelu_add if str(a.dtype) == str(b.dtype) == "float32" else None


TRITON = {
    "gelu_add": TritonKernel(
        "gelu_add_triton.py:gelu_add",
        arguments=lambda a, b, y: [a, b, y, y.size],
        grid=lambda constants, a, b, y: math.ceil(y.size / constants["BLOCK"]),
        configurations=[
            {"BLOCK": 1024, "num_warps": 4},
            {"BLOCK": 512, "num_warps": 4},
            {"BLOCK": 2048, "num_warps": 8},
        ],
    )
}
PRIM_FUNCS = {"gelu_add": of_float32}
PATTERNS = [(cast(sum_), replace), (sum_, replace)]
