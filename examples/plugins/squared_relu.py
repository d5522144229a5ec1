"""Squared ReLU as one operator of our own: `y = max(x, 0)²` (So et al., "Primer", 2021).

    relaxc compile model.onnx --plugin examples/plugins/squared_relu.py

Models write it as `relu(x) * relu(x)` or `relu(x) ** 2`. Both become one call of the PrimFunc below, which the
pipeline then fuses and schedules like its own operators: after a matmul it is part of the matmul's kernel.
"""

import math

from tvm import relax, tirx
from tvm.relax.dpl import is_const, is_op, wildcard
from tvm.script import tirx as T


def squared_relu(x: relax.TensorType) -> tirx.PrimFunc:
    """The operator for tensors of the type of `x`: of any rank from 2, any sizes, symbolic ones too."""
    shape, dtype = tuple(x.shape), str(x.dtype)
    axes, zero = "S" * len(shape), tirx.const(0, dtype)

    @T.prim_func(private=True, s_tir=True)
    def function(X: T.Buffer(shape, dtype), Y: T.Buffer(shape, dtype)):
        T.func_attr({"tirx.noalias": True})
        for loops in T.grid(*shape):
            with T.sblock("squared_relu"):
                at = tuple(T.axis.remap(axes, loops))
                Y[at] = T.max(X[at], zero) * T.max(X[at], zero)

    return function


x = wildcard()
relu = is_op("relax.nn.relu")(x)
exponent = is_const()
product = is_op("relax.multiply")(relu, relu)
power = is_op("relax.power")(relu, exponent)


def replace(matched, parts, ops):
    """A call of the operator, or None to leave the match as it is: another exponent, or a rank without axes to loop."""
    if matched.ty.ndim < 2:
        return None
    if power in parts and not math.isclose(float(parts[exponent].value.numpy().max()), 2.0):
        return None
    return ops("squared_relu", [parts[x]])


PRIM_FUNCS = {"squared_relu": squared_relu}
PATTERNS = [(product, replace), (power, replace)]
