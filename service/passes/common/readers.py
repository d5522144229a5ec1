"""Who reads what, and what products have fused behind them."""

from __future__ import annotations

from typing import Any

from tvm import relax

__all__ = ["Readers", "pattern_of"]

_CONTRACTION = 4
"""TVM's number of a pattern behind which elementwise operators are fused."""


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


def pattern_of(rows: int) -> dict[str, int]:
    """Return the attributes by which a product has its epilogue fused: TVM sees no contraction in unknown rows (0)."""
    return {} if rows else {"op_pattern": _CONTRACTION}
