"""Calls of kernels that are written as tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxc.service.frontend.onnx.scope import Scope

__all__ = ["dtype_of", "one_of", "swapped", "tensor_expression"]


def tensor_expression(builder: Any, scope: Scope, function: Callable[..., Any], args: Sequence[Any], name: str) -> Any:
    """Return a call of `function` of tensors, sizes and plain values, whose kernel is in the builder's module.

    As BlockBuilder.call_te, which however passes symbolic sizes in the order of a set of pointers, another in each
    process. Here they go in the order in which the model names them, so that equal models give equal files.
    """
    from tvm import relax, te, tirx

    outer = list(scope.variables.values())
    inner = [tirx.Var(variable.name, "int64") for variable in outer]
    inwards, outwards = dict(zip(outer, inner, strict=True)), dict(zip(inner, outer, strict=True))
    tensors = [arg for arg in args if isinstance(arg, relax.Expr) and isinstance(arg.ty, relax.TensorType)]
    buffers = [
        te.placeholder([swapped(dim, inwards) for dim in x.ty.shape.values], dtype_of(x), name=f"x{place}")
        for place, x in enumerate(tensors)
    ]
    given = iter(buffers)
    result = function(*(next(given) if _any_is(arg, tensors) else swapped(arg, inwards) for arg in args))
    results = list(result) if isinstance(result, list | tuple) else [result]
    free = _free_sizes(buffers, results, args, inwards, inner)
    prim_func = te.create_prim_func([*buffers, *free, *results], "int64").without_attr("global_symbol")
    place = builder.add_func(prim_func, name)
    types = [
        relax.TensorType(relax.ShapeExpr([swapped(dim, outwards) for dim in out.shape]), out.dtype) for out in results
    ]
    arguments = relax.Tuple([*tensors, *(outwards[variable] for variable in free)])
    return relax.call_tir(place, arguments, types if len(types) > 1 else types[0])


def one_of(place: Any, numbers: Sequence[Any]) -> Any:
    """Return the expression of the number at a place."""
    from tvm import tirx

    result = numbers[-1]
    for number in range(len(numbers) - 2, -1, -1):
        result = tirx.if_then_else(place == number, numbers[number], result)
    return result


def swapped(value: Any, swap: dict[Any, Any]) -> Any:
    """Return a size with its variables exchanged; lists element by element, anything else as it is."""
    import tvm_ffi
    from tvm import ir

    if isinstance(value, list):
        return [swapped(item, swap) for item in value]
    if not ir.is_prim_expr(value):
        return value
    return tvm_ffi.structural_map(value, (ir.Var, lambda v: swap.get(v, v)), order="post")


def _any_is(value: Any, candidates: list[Any]) -> bool:
    return any(value is candidate for candidate in candidates)


def _free_sizes(
    buffers: list[Any], results: list[Any], args: Sequence[Any], inwards: dict[Any, Any], inner: list[Any]
) -> list[Any]:
    """The sizes that a kernel uses and none of its inputs has as a dim of its own."""
    from tvm import ir, tirx

    sizes = [dim for tensor in (*buffers, *results) for dim in tensor.shape]
    sizes += [swapped(arg, inwards) for arg in args if ir.is_prim_expr(arg)]
    used = {variable for size in sizes for variable in tirx.analysis.undefined_vars(size)}
    bound = {dim for buffer in buffers for dim in buffer.shape if isinstance(dim, ir.Var)}
    return [variable for variable in inner if variable in used and variable not in bound]


def dtype_of(expression: Any) -> str:
    """Return the dtype of a Relax tensor expression."""
    return str(expression.ty.dtype.dtype)
