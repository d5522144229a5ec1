"""What several operator families need: broadcasting of symbolic shapes, accumulation in fp32, scalars of a dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
from tvm import relax

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of

__all__ = [
    "FLOAT8",
    "aligned",
    "cast",
    "constant",
    "full_precision",
    "is_float",
    "is_integer",
    "is_low_precision",
    "permuted",
    "reshaped",
    "scalar",
    "through_float8",
]

FLOAT8 = "float8_e4m3fn"
"""The 8-bit float that there are kernels for; its zero points are 0."""


def is_float(dtype: str) -> bool:
    """Return whether a dtype is a floating-point one."""
    return dtype.startswith(("float", "bfloat"))


def is_integer(dtype: str) -> bool:
    """Return whether a dtype is a signed or unsigned integer."""
    return dtype.startswith(("int", "uint"))


def is_low_precision(dtype: str) -> bool:
    """Return whether sums in a dtype lose digits that the reference keeps."""
    return dtype in ("float16", "bfloat16")


def scalar(value: float | int | bool, like: Any) -> Any:
    """Return a constant of rank 0 with the dtype of an expression. Raise Refused where that has no such number."""
    dtype = dtype_of(like)
    if is_integer(dtype):
        limits = ml_dtypes.iinfo(Node.numpy_dtype(dtype))
        if not limits.min <= value <= limits.max or value != math.floor(value):
            raise Refused(f"{value} in the dtype {dtype}, which has no such number")
    return relax.const(value, dtype)


def constant(array: Any) -> Any:
    """Return a constant of an array's numbers and dtype: untold, `relax.const` makes 32 bits of 64."""
    return relax.const(array, str(array.dtype))


def cast(expression: Any, dtype: str) -> Any:
    """Return the expression in another dtype; itself when it has it already."""
    return expression if dtype_of(expression) == dtype else relax.op.astype(expression, dtype)


def through_float8(node: Node, x: Any, dtype: str) -> Any:
    """Return `x` cast to 8-bit floats, or from them: quantized by 1, as TVM's own casts lose what is small or large."""
    one, zero = relax.const(1, "float32"), relax.const(0, "int32")
    if dtype != FLOAT8:
        return cast(node.emit(relax.op.dequantize(x, one, zero, -1, "float32")), dtype)
    return relax.op.quantize(node.emit(cast(x, "float32")), one, zero, -1, FLOAT8)


def full_precision(node: Node, function: Callable[..., Any], *tensors: Any) -> Any:
    """Return `function` of tensors in fp32 when they are fp16 or bf16, in float64 when integers, cast back."""
    dtype = dtype_of(tensors[0])
    if not is_low_precision(dtype) and not is_integer(dtype):
        return function(*tensors)
    wide = [node.emit(cast(tensor, "float64" if is_integer(dtype) else "float32")) for tensor in tensors]
    return cast(node.emit(function(*wide)), dtype)


def aligned(node: Node, *tensors: Any) -> list[Any]:
    """Return the tensors, with every pair of dims that broadcasting joins either provably equal or a literal 1.

    Where that cannot be proved (two symbolic names), ONNX leaves it to the run; here it becomes part of the signature.
    Raise ModelMalformed when two sizes can never be joined, and otherwise what `require_shape` does.
    """
    shapes = [node.shape_of(tensor) for tensor in tensors]
    rank = max(map(len, shapes))
    wanted: list[Any] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, rank - len(shape)):
            known = wanted[axis]
            if _is_one(known) or (not onnx_dims.is_static(known) and onnx_dims.is_static(dim) and not _is_one(dim)):
                wanted[axis] = dim
    return [
        _match(node, tensor, shape, wanted[rank - len(shape) :]) for tensor, shape in zip(tensors, shapes, strict=True)
    ]


def _match(node: Node, tensor: Any, shape: list[Any], wanted: list[Any]) -> Any:
    matched = [dim if _is_one(dim) else want for dim, want in zip(shape, wanted, strict=True)]
    return require_shape(node, tensor, shape, matched)


def require_shape(node: Node, tensor: Any, shape: list[Any], wanted: list[Any]) -> Any:
    """Return the tensor with the wanted shape: as it is when that is proved; two names that must be equal become one,
    and other sizes that are equal in some calls only are a condition of each call.

    Raise ModelMalformed for two numbers, Equal for a name, and Refused for what can be said of no name.
    """
    pairs = [(dim, want) for dim, want in zip(shape, wanted, strict=True) if not onnx_dims.same(dim, want, node.scope)]
    for dim, want in pairs:
        if onnx_dims.is_static(dim) and onnx_dims.is_static(want):
            raise ModelMalformed(f"node {node.name!r} ({node.op}) joins the sizes {dim} and {want}", node=node.name)
        node.scope.unify(dim, want)
        node.require(dim, "==", want, "joins the sizes {left} and {right}")
    return _taken(node, tensor, shape, wanted) if pairs else tensor


def _taken(node: Node, tensor: Any, shape: list[Any], wanted: list[Any]) -> Any:
    """The tensor, whose sizes are the wanted ones in every call, as one of these: its elements from 0 to them.

    TVM has no other way to say so: a cast to a shape has it follow `seq = min(seq, 64)` until its stack ends.
    """
    axes = [axis for axis, want in enumerate(wanted) if not onnx_dims.same(shape[axis], want, node.scope)]
    ends = [relax_dim(wanted[axis]) for axis in axes]
    zeros, ones = [relax_dim(0)] * len(axes), [relax_dim(1)] * len(axes)
    return node.builder.emit(relax.op.strided_slice(tensor, axes, zeros, ends, ones, assume_inbound=True))


def _is_one(dim: Any) -> bool:
    return isinstance(dim, int) and dim == 1


def reshaped(node: Node, tensor: Any, shape: list[Any]) -> Any:
    """Return the tensor in another shape with equally many elements."""
    return node.emit(relax.op.reshape(tensor, relax.ShapeExpr([relax_dim(dim) for dim in shape])))


def relax_dim(dim: Any) -> Any:
    """Return a dim as Relax takes it."""
    from tvm import tirx

    return tirx.IntImm("int64", dim) if isinstance(dim, int) else dim


def permuted(node: Node, tensor: Any, axes: list[int]) -> Any:
    """Return the tensor with its axes in another order."""
    return tensor if axes == list(range(len(axes))) else node.emit(relax.op.permute_dims(tensor, axes))
