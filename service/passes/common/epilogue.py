"""What is computed element by element right behind a value: the part of an operator's key that a graph pass can see."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import Op

__all__ = ["Readers", "epilogue_of", "pattern_of"]

_CONTRACTION = 4
"""TVM's number of a pattern behind which elementwise operators are fused."""

_MOST = 8
"""Operators of an epilogue that are told apart."""

_UNARY = {
    *("abs", "clip", "erf", "exp", "log", "negative", "rsqrt", "sigmoid", "sqrt", "square", "tanh"),
    *("nn.gelu", "nn.gelu_tanh", "nn.hardswish", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu", "nn.softplus"),
}
_BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "power"}


class Readers:
    """Who reads each variable of a function."""

    def __init__(self, function: relax.Function) -> None:
        self._readers: dict[Any, list[relax.VarBinding | None]] = {}
        pending = [function.body]
        while pending:
            body = pending.pop()
            for block in body.blocks:
                for binding in block.bindings:
                    self._note(binding.value, binding)
                    if isinstance(binding.value, relax.If):
                        pending += [binding.value.true_branch, binding.value.false_branch]
            self._note(body.body, None)

    def of(self, var: relax.Var) -> list[relax.VarBinding | None]:
        """Return the bindings whose value reads `var`; None for one that is the function's result."""
        return self._readers.get(var, [])

    def _note(self, value: relax.Expr, reader: relax.VarBinding | None) -> None:
        found: list[relax.Var] = []
        relax.analysis.post_order_visit(value, lambda e: found.append(e) if isinstance(e, relax.Var) else None)
        for var in found:
            self._readers.setdefault(var, []).append(reader)


def epilogue_of(readers: Readers, var: relax.Var | None) -> tuple[str, ...]:
    """Return the names of the elementwise operators behind `var`, as far as each has one reader and keeps the shape.

    `add.1` has an operand besides, of fewer elements; `add.n` one of as many.
    """
    names: list[str] = []
    while var is not None and len(names) < _MOST:
        found = readers.of(var)
        name = _elementwise(found[0], var) if len(found) == 1 and found[0] is not None else ""
        if not name or found[0] is None:
            break
        names.append(name)
        var = found[0].var
    return tuple(names)


def pattern_of(rows: int) -> dict[str, int]:
    """Return the attributes by which a product has its epilogue fused: TVM sees no contraction in unknown rows (0)."""
    return {} if rows else {"op_pattern": _CONTRACTION}


def _elementwise(binding: relax.VarBinding, var: relax.Var) -> str:
    """The name of an elementwise operator that keeps the shape of `var`; empty for anything else."""
    call = binding.value
    if not isinstance(call, relax.Call) or not isinstance(call.op, Op):
        return ""
    name = str(call.op.name).removeprefix("relax.")
    if name not in _UNARY | _BINARY or _sizes(call) != _sizes(var):
        return ""
    others = [arg for arg in call.args if not arg.same_as(var)] if name in _BINARY else []
    return name.removeprefix("nn.") + "".join(".n" if _sizes(arg) == _sizes(var) else ".1" for arg in others)


def _sizes(expr: relax.Expr) -> tuple[str, ...]:
    shape = getattr(expr.ty, "shape", None)
    return tuple(map(str, shape)) if isinstance(shape, relax.ShapeExpr) else ()
