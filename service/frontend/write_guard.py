"""Writes into what a program keeps: where one would go outside, none is made, and the call ends with an error."""

from __future__ import annotations

from typing import Any

from relaxc.service.errors import UnsupportedModel

__all__ = ["WriteGuard"]


class WriteGuard:
    """Collects how far outside the indices of writes are, and keeps every write from changing anything if one is.

    `unharmed(values, before)` is `where(excess <= 0, values, before)`, where `excess` is the furthest of all; as it is
    known at the end alone, it stands for itself until `finish` computes it ahead of the first write.
    """

    def __init__(self, bb: Any) -> None:
        from tvm import relax

        self._bb = bb
        self._inside = relax.Var("inside", relax.TensorType([], "bool"))
        self._excess: list[Any] = []

    def check(self, indices: Any, size: Any, *, wrap: bool) -> None:
        """Hold a call to `indices` below `size`, a tensor of their dtype, and from 0 on, or with `wrap` from -size."""
        from tvm import relax

        op, emit = relax.op, self._bb.emit
        dtype = str(indices.ty.dtype)
        low = emit(op.negative(size)) if wrap else relax.const(0, dtype)
        above = emit(op.subtract(indices, emit(op.subtract(size, relax.const(1, dtype)))))
        furthest = emit(op.maximum(above, emit(op.subtract(low, indices))))
        self._excess.append(emit(op.astype(emit(op.max(furthest)), "int64")))

    def unharmed(self, values: Any, before: Any) -> Any:
        """Return `values`, or `before` in a call that writes outside anywhere."""
        from tvm import relax

        return self._bb.emit(relax.op.where(self._inside, values, before))

    def excess(self) -> Any | None:
        """Return the furthest that any write of a call is outside, 0 or less where none is; None without writes."""
        from tvm import relax

        if not self._excess:
            return None
        total = self._excess[0]
        for each in self._excess[1:]:
            total = self._bb.emit(relax.op.maximum(total, each))
        return total

    def excess_of(self, function: Any) -> tuple[Any, Any] | None:
        """Return a function that was rewritten with these checks, which computes `excess`, and that; None without
        writes.
        """
        from tvm import relax

        if not self._excess:
            return None
        last = self._excess[-1]
        block = next(each for each in function.body.blocks if last in {binding.var for binding in each.bindings})
        total, made = self._excess[0], []
        for place, each in enumerate(self._excess[1:]):
            var = relax.Var(f"outside{place}", last.ty)
            made.append(relax.VarBinding(var, self._bb.normalize(relax.op.maximum(total, each))))
            total = var
        if not made:
            total = relax.Var("outside", last.ty)
            made = [relax.VarBinding(total, last)]
        return _with_bindings(function, block, [*block.bindings, *made]), total

    def finish(self, function: Any, excess: Any) -> Any:
        """Return the function with `excess`, and what it is computed of, ahead of everything that waits for it.

        Raise UnsupportedModel where a place depends on what an earlier write left.
        """
        from tvm import relax

        (block,) = [each for each in function.body.blocks if excess in {binding.var for binding in each.bindings}]
        bound = {binding.var: binding for binding in block.bindings}
        needed: set[Any] = set()
        pending = [excess]
        while pending:
            var = pending.pop()
            if var == self._inside:
                raise UnsupportedModel(
                    "a place that is written in the state depends on what the same call has written before",
                    remedy="Compute the places of all writes before the first of them.",
                )
            if var in bound and var not in needed:
                needed.add(var)
                pending += _read(bound[var])
        first = [binding for binding in block.bindings if binding.var in needed]
        rest = [binding for binding in block.bindings if binding.var not in needed]
        inside = self._bb.normalize(relax.op.less_equal(excess, relax.const(0, "int64")))
        return _with_bindings(function, block, [*first, relax.VarBinding(self._inside, inside), *rest])


def _with_bindings(function: Any, block: Any, bindings: list[Any]) -> Any:
    """The function with these bindings in a block of it."""
    from tvm import relax

    made = relax.DataflowBlock(bindings) if isinstance(block, relax.DataflowBlock) else relax.BindingBlock(bindings)
    blocks = [made if each.same_as(block) else each for each in function.body.blocks]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _read(binding: Any) -> list[Any]:
    from tvm import relax

    return list(relax.analysis.free_vars(binding.value))
