"""Scatters into state that an imported module has, held inside (`write_guard`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from relaxc.service.frontend.write_guard import WriteGuard

__all__ = ["held"]

_WRITES = ("relax.scatter_elements", "relax.scatter_nd")
_KEEPS = {"add": 0, "mul": 1}
"""Reductions, and what they leave a value as it is with; others leave it with itself."""


def held(module: Any, main: Any, states: Sequence[Any]) -> tuple[Any, Any]:
    """Return `main` whose scatters into `states` change nothing in a call in which one of them goes outside, and the
    furthest that any does, a number of the call; None where there are none.
    """
    walker = _Held(module, states)
    rewritten = walker.visit_expr(main)
    excess = walker.guard.excess_of(rewritten)
    if excess is None:
        return main, None
    function, total = excess
    return walker.guard.finish(function, total), total


@mutator
class _Held(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    def __init__(self, module: Any, states: Sequence[Any]) -> None:
        super().__init__(module)
        self.states = states
        self.guard = WriteGuard(self.builder_)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not hasattr(call.op, "name") or call.op.name not in _WRITES or not self._is_state(call.args[0]):
            return call
        data, places, values = call.args
        op, emit = relax.op, self.builder_.emit
        reduction = str(call.attrs.reduction)
        if call.op.name == "relax.scatter_elements":
            axis = int(call.attrs.axis) % data.ty.ndim
            self._check(places, [data.ty.shape[axis]])
            before = None if reduction in _KEEPS else emit(op.gather_elements(data, places, axis=axis))
        else:
            self._check(places, list(data.ty.shape)[: int(places.ty.shape[-1])])
            before = None if reduction in _KEEPS else emit(op.gather_nd(data, places))
        if before is None:
            before = relax.const(np.asarray(_KEEPS[reduction]).astype(str(values.ty.dtype)), str(values.ty.dtype))
        return relax.Call(call.op, [data, places, self.guard.unharmed(values, before)], call.attrs)

    def _is_state(self, expr: Any) -> bool:
        """Whether it is a state, or what was written into one."""
        while expr is not None:
            if any(expr.same_as(state) for state in self.states):
                return True
            if isinstance(expr, relax.Var):
                expr = self.lookup_binding(expr)
            elif isinstance(expr, relax.Call) and getattr(expr.op, "name", "") in (*_WRITES, "relax.reshape"):
                expr = expr.args[0]
            else:
                return False
        return False

    def _check(self, places: Any, sizes: Sequence[Any]) -> None:
        known = np.array([int(size) for size in sizes], "int64")
        wide = self.builder_.emit(relax.op.astype(places, "int64"))
        self.guard.check(wide, relax.const(known if len(known) > 1 else known[0], "int64"), wrap=False)
