"""The stores of VMShapeLower's shape functions in the order of their slots: equal models, equal bytes."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, tirx

from relaxc.schedules.ir import tir
from relaxc.service.passes.common.rewrite import with_functions

__all__ = ["OrderShapeStores"]


@tvm.transform.module_pass(opt_level=0, name="OrderShapeStores")
class OrderShapeStores:
    """After VMShapeLower, whose stores come in the order of a hash map keyed by addresses: another one each run.

    A shape function computes symbolic sizes: `H[slot] = expression of H[slots of variables]`. It stores a slot
    once, and reads none that it stores, so any order of its stores means the same; this is checked.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with its shape functions in order. Raise ValueError where order would matter."""
        ordered = {
            var: function.with_body(tirx.SeqStmt(_ordered(var.name_hint, list(function.body.seq))))
            for var, function in module.functions_items()
            if _is_shape_function(function)
        }
        return with_functions(module, ordered)


def _is_shape_function(function: Any) -> bool:
    return (
        isinstance(function, tirx.PrimFunc)
        and bool((function.attrs or {}).get("tirx.is_host_func", False))
        and isinstance(function.body, tirx.SeqStmt)
        and all(isinstance(stmt, tirx.BufferStore) for stmt in function.body.seq)
    )


def _ordered(name: str, stores: list[Any]) -> list[Any]:
    by_slot = {int(store.indices[0]): store for store in stores}
    read = {int(load.indices[0]) for store in stores for load in tir.loads(store.value)}
    if len(by_slot) != len(stores) or read & by_slot.keys():
        raise ValueError(f"the shape function {name} stores a slot twice or reads one that it stores")
    return [by_slot[slot] for slot in sorted(by_slot)]
