"""Symbolic sizes are simplified with their bounds, so that tensors which fit are seen to fit."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir import Range
from tvm.sym import Analyzer

from relaxc.service.passes.common.rewrite import Scope, rewrite_calls
from relaxc.service.passes.simplify.simplify_shapes import shape_of

__all__ = ["SimplifySizes"]

SHAPED = ("reshape", "broadcast_to", "full", "zeros", "ones")
"""Operators that take a literal shape."""

FAR = 1 << 62
"""The upper bound of a size that has none."""


@tvm.transform.module_pass(opt_level=0, name="SimplifySizes")
class SimplifySizes:
    """`table[:, :n]` of 512 columns has the shape `(1, min(n, 512))`; where `n ≤ 512` is known, this is `(1, n)`.

    Such slices are marked `assume_inbound`, their axes counted from the front, literal shapes are simplified, and
    the shapes after them are inferred again. The bounds are those of `main` (attributes tir_var_lower_bound and
    tir_var_upper_bound; a size is at least 1 where nothing is said). Without this, a sum with the slice has an
    unknown shape and no kernel.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with the simplest sizes."""
        analyzer = _analyzer(module["main"])

        def shaped(call: relax.Call, _: Scope) -> relax.Expr | None:
            return _simplified(call, analyzer)

        def sliced(call: relax.Call, _: Scope) -> relax.Expr | None:
            positive = _with_axes_from_the_front(call)
            return positive if positive is not None else _bounded(call, analyzer)

        return rewrite_calls(module, {**dict.fromkeys(SHAPED, shaped), "strided_slice": sliced})


def _simplified(call: relax.Call, analyzer: Any) -> relax.Expr | None:
    args = [
        relax.ShapeExpr([analyzer.simplify(dim) for dim in arg.values]) if isinstance(arg, relax.ShapeExpr) else arg
        for arg in call.args
    ]
    same = all(tvm_ffi.structural_equal(new, old) for new, old in zip(args, call.args, strict=True))
    return None if same else relax.Call(call.op, args, call.attrs)


def _analyzer(main: relax.Function) -> Any:
    """An analyzer that knows the bounds of the symbolic sizes of `main`'s parameters."""
    analyzer = Analyzer()
    attrs = main.attrs or {}
    low, high = (dict(attrs.get(name) or {}) for name in ("tir_var_lower_bound", "tir_var_upper_bound"))
    for var in relax.analysis.defined_symbolic_vars(main):
        first = int(low.get(str(var.name), 1))
        last = int(high.get(str(var.name), FAR))
        analyzer.bind(var, Range.from_min_extent(tirx.IntImm("int64", first), tirx.IntImm("int64", last - first + 1)))
    return analyzer


def _with_axes_from_the_front(call: relax.Call) -> relax.Expr | None:
    """TVM's legalization takes no negative axis."""
    axes = [int(axis) for axis in call.args[1].fields] if isinstance(call.args[1], relax.Tuple) else []
    if all(axis >= 0 for axis in axes):
        return None
    positive = relax.Tuple([tirx.IntImm("int64", axis % call.ty.ndim) for axis in axes])
    return relax.Call(call.op, [call.args[0], positive, *call.args[2:]], call.attrs)


def _bounded(call: relax.Call, analyzer: Any) -> relax.Expr | None:
    sizes = shape_of(call.args[0])
    parts = [list(arg.fields) for arg in call.args[1:] if isinstance(arg, relax.Tuple)]
    if call.attrs.assume_inbound or sizes is None or len(parts) != len(call.args) - 1:
        return None
    axes, begins, ends = parts[:3]
    steps = parts[3] if len(parts) > 3 else [tirx.IntImm("int64", 1)] * len(axes)
    inside = []
    for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        bounded = _inside(begin, end, step, sizes[int(axis)], analyzer)
        if bounded is None:
            return None
        inside.append(bounded)
    return relax.op.strided_slice(*call.args[:3], relax.Tuple(inside), relax.Tuple(steps), assume_inbound=True)


def _inside(begin: Any, end: Any, step: Any, size: Any, analyzer: Any) -> Any | None:
    """The end of `begin:end:step` clipped to `size`, if `0 ≤ begin ≤ end` is known and `step` is positive."""
    if getattr(step, "value", 0) <= 0 or not analyzer.can_prove(begin >= 0):
        return None
    if analyzer.can_prove(end >= size):
        end = size
    inside = analyzer.can_prove(begin <= end) and analyzer.can_prove(end <= size)
    return end if inside else None
