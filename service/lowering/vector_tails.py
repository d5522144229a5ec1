"""Vector loops with conditions on their lanes: a vector version where these hold for all lanes, else a scalar one.

    for l in vectorized(16): if i * 16 + l < n: S(l)
    →
    if i * 16 + 15 < n: for l in vectorized(16): S(l)
    else:               for l in 16: if i * 16 + l < n: S(l)

TVM's VectorizeLoop runs a loop lane by lane as soon as a condition in it depends on the lane, so that one
odd row at the end would cost the vectors of all others. The same goes for `if_then_else` in expressions,
which is how padding and concatenation are written.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.sym import Analyzer

from relaxc.schedules.ir import tir

__all__ = ["VersionVectorLoops"]

_SMALLER = (tirx.LT, tirx.LE)
_GREATER = (tirx.GT, tirx.GE)


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.VersionVectorLoops")
class VersionVectorLoops:
    """Splits every vectorized loop that has conditions which are monotone in its lane, as above."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _versioned)))


def _versioned(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    lane, last = loop.loop_var, int(loop.extent.value) - 1
    atoms = [atom for condition in _conditions(loop.body) for atom in _atoms(condition) if tir.uses(atom, [lane])]
    if not atoms:
        return loop
    tightest = [_tightest(atom, lane, last) for atom in atoms]
    if any(value is None or _escapes(value, loop.body) for value in tightest):
        return loop
    guard = Analyzer().simplify(tirx.all(*tightest))
    fast = _with(loop, tirx.ForKind.VECTORIZED, _assume(loop.body, lane))
    return tirx.IfThenElse(guard, fast, _with(loop, tirx.ForKind.SERIAL, loop.body))


def _with(loop: Any, kind: int, body: Any) -> Any:
    """The loop with another kind and body, and a variable of its own: TIR names each variable once."""
    fresh = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    body = tvm_ffi.structural_map(body, (tirx.Var, lambda var: fresh if var.same_as(loop.loop_var) else var))
    return tirx.For(fresh, loop.min, loop.extent, kind, body)


def _conditions(body: Any) -> list[Any]:
    calls = [call for call in tir.collect(body, Call) if tir.is_if_then_else(call)]
    return [*(call.args[0] for call in calls), *(stmt.condition for stmt in tir.collect(body, tirx.IfThenElse))]


def _atoms(condition: Any) -> list[Any]:
    """The parts of a conjunction."""
    if isinstance(condition, tirx.And):
        return [*_atoms(condition.a), *_atoms(condition.b)]
    if isinstance(condition, Call) and getattr(condition.op, "name", "") == "prim.likely":
        return _atoms(condition.args[0])
    return [condition]


def _escapes(value: Any, body: Any) -> bool:
    """Whether `value` uses a variable that `body` itself defines."""
    defined = [loop.loop_var for loop in tir.collect(body, tirx.For)] + [b.var for b in tir.collect(body, tirx.Bind)]
    return bool(tir.uses(value, defined))


def _tightest(atom: Any, lane: Any, last: int) -> Any | None:
    """The atom at the lane where it is hardest to meet, if it is monotone in the lane."""
    if not isinstance(atom, (*_SMALLER, *_GREATER)):
        return None
    left, right = _direction(atom.a, lane), _direction(atom.b, lane)
    if left is None or right is None or left * right > 0:
        return None
    rises = left or -right
    at_last = (rises > 0) == isinstance(atom, _SMALLER)
    value = tirx.const(last if at_last else 0, lane.ty.dtype)
    return tvm_ffi.structural_map(atom, (tirx.Var, lambda var: value if var.same_as(lane) else var))


def _direction(expr: Any, lane: Any) -> int | None:
    """1 where `expr` never falls as the lane rises, -1 where it never rises, 0 without the lane, else None."""
    if not tir.uses(expr, [lane]):
        return 0
    if isinstance(expr, tirx.Var):
        return 1
    if isinstance(expr, tirx.Cast):
        return _direction(expr.value, lane)
    if isinstance(expr, tirx.FloorDiv | tirx.Mul):
        return _scaled(expr, lane)
    if isinstance(expr, tirx.Add | tirx.Sub | tirx.Min | tirx.Max):
        a, b = _direction(expr.a, lane), _direction(expr.b, lane)
        if a is None or b is None:
            return None
        b = -b if isinstance(expr, tirx.Sub) else b
        return (a or b) if a * b >= 0 else None
    return None


def _scaled(expr: Any, lane: Any) -> int | None:
    a, factor = expr.a, expr.b
    if isinstance(expr, tirx.Mul) and isinstance(a, tirx.IntImm):
        a, factor = factor, a
    if not isinstance(factor, tirx.IntImm) or factor.value == 0:
        return None
    direction = _direction(a, lane)
    return None if direction is None else direction if factor.value > 0 else -direction


def _assume(body: Any, lane: Any) -> Any:
    """`body` with every condition on the lane taken as met."""

    def remaining(condition: Any) -> Any:
        kept = [atom for atom in _atoms(condition) if not tir.uses(atom, [lane])]
        return tirx.all(*kept) if kept else None

    def expression(call: Any) -> Any:
        if not tir.is_if_then_else(call) or not tir.uses(call.args[0], [lane]):
            return call
        condition = remaining(call.args[0])
        return call.args[1] if condition is None else tirx.if_then_else(condition, call.args[1], call.args[2])

    def statement(stmt: Any) -> Any:
        if not tir.uses(stmt.condition, [lane]):
            return stmt
        condition = remaining(stmt.condition)
        return stmt.then_case if condition is None else tirx.IfThenElse(condition, stmt.then_case, stmt.else_case)

    return tvm_ffi.structural_map(body, [(Call, expression), (tirx.IfThenElse, statement)])
