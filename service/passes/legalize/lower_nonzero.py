"""`nonzero` to kernels: TVM has a Python function for it, which a process that only runs an artifact does not have."""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm import IRModule, relax, te, tirx
from tvm.script import tirx as T

from relaxc.schedules.ir import tir
from relaxc.service.passes.common.rewrite import Scope, rewrite_calls

__all__ = ["LowerNonzero"]

_TO_SHAPE = "vm.builtin.tensor_to_shape"


@cache
def _count() -> tirx.PrimFunc:
    """`flags[n] → count[1]`. Parsed where a model has a `nonzero`: that takes 0.1 s, which every import would pay."""

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def count(flags: T.handle, number: T.handle) -> None:
        n = T.int64()
        F = T.match_buffer(flags, (n,), "bool")
        found = T.match_buffer(number, (1,), "int64")
        with T.sblock("count"):
            T.reads(F[0:n])
            T.writes(found[0:1])
            found[0] = T.int64(0)
            for i in range(n):
                if F[i]:
                    found[0] = found[0] + T.int64(1)

    return count


@cache
def _places() -> tirx.PrimFunc:
    """`flags[n] → places[m]`, the first m that are set."""

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def places(flags: T.handle, found: T.handle) -> None:
        n, m = T.int64(), T.int64()
        F = T.match_buffer(flags, (n,), "bool")
        P = T.match_buffer(found, (m,), "int64")
        with T.sblock("places"):
            T.reads(F[0:n])
            T.writes(P[0:m])
            done = T.sblock_alloc_buffer((1,), "int64")
            done[0] = T.int64(0)
            for i in range(n):
                if F[i] and done[0] < m:
                    P[done[0]] = i
                    done[0] = done[0] + T.int64(1)

    return places


@tvm.transform.module_pass(opt_level=0, name="LowerNonzero")
class LowerNonzero:
    """`nonzero(x) → count, tensor_to_shape, places, coordinates`: m places are allocated when they are counted.

    For a CPU: the kernels are loops over all elements on one thread. A tensor whose shape is not known is left alone.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module without `nonzero`; the same object where there is none."""
        names = _names(module)
        return rewrite_calls(module, {"nonzero": lambda call, scope: _nonzero(call, scope, names.get(scope.bound))})


def _names(module: IRModule) -> dict[Any, Any]:
    """What the model calls the number of places, by the variable that they are bound to."""
    found: dict[Any, Any] = {}
    for function in module.functions.values():
        for block in function.body.blocks if isinstance(function, relax.Function) else ():
            for binding in block.bindings:
                shape = getattr(binding.var.ty, "shape", None)
                if (
                    isinstance(binding, relax.MatchCast)
                    and isinstance(shape, relax.ShapeExpr)
                    and len(shape.values) == 2
                ):
                    found.setdefault(binding.value, shape.values[1])
    return {places: size for places, size in found.items() if isinstance(size, tirx.Var)}


def _nonzero(call: relax.Call, scope: Scope, name: Any) -> relax.Expr | None:
    """The kernels for one call, whose number of places has a name: fused kernels have one name for one size."""
    x = call.args[0]
    if not isinstance(x.ty.shape, relax.ShapeExpr):
        return None
    sizes = list(x.ty.shape) or [1]  # as numpy takes a number for a vector of one
    if any(getattr(size, "value", None) == 0 for size in sizes):
        return relax.op.zeros(relax.ShapeExpr([len(sizes), 0]), "int64")
    dtype = str(x.ty.dtype)
    flags = scope.emit(x if dtype == "bool" else scope.builder.call_te(_flags, x, primfunc_name_hint="flags_nonzero"))
    flags = scope.emit(relax.op.reshape(flags, [tir.product(sizes)]))
    count = scope.emit(_called(scope, _count(), "count_nonzero", flags, 1))
    shape = scope.emit(relax.call_pure_packed(_TO_SHAPE, count, ty_args=relax.ShapeType(ndim=1)))
    m = tirx.Var("m", "int64") if name is None else name
    scope.builder.match_cast(shape, relax.ShapeType([m]))
    flat = scope.emit(_called(scope, _places(), "places_nonzero", flags, m))
    return scope.builder.call_te(_coordinates, flat, relax.ShapeExpr(sizes), primfunc_name_hint="nonzero")


def _flags(x: te.Tensor) -> te.Tensor:
    """Where x is not 0. TVM's `!=` is false for a NaN, which is not 0."""
    zero, yes, no = tirx.const(0, x.dtype), tirx.const(True, "bool"), tirx.const(False, "bool")
    return te.compute(x.shape, lambda *at: tirx.Select(x(*at) == zero, no, yes), name="flags_nonzero")


def _coordinates(places: te.Tensor, sizes: Any) -> te.Tensor:
    """`places[m] → found[axis, m]`, in row-major order of these sizes."""

    def coordinate(axis: Any, place: Any) -> Any:
        left, found = places[place], tirx.const(0, "int64")
        for at, size in reversed(list(enumerate(sizes))):
            found = tirx.Select(axis == at, left % size, found)
            left = left // size
        return found

    return te.compute((len(sizes), places.shape[0]), coordinate, name="nonzero")


def _called(scope: Scope, function: Any, name: str, flags: relax.Var, size: Any) -> relax.Expr:
    kernel = scope.builder.add_func(function, name)
    return relax.call_tir(kernel, [flags], relax.TensorType([size], "int64"))
