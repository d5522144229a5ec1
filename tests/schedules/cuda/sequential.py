"""Scheduled kernels without a GPU: a thread after the other, which is what the loops of a schedule mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.common.races import race
from relaxc.schedules.ir import tir
from relaxc.schedules.template import Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests import quickly
from tests.schedules.numpy_tir import random_inputs

__all__ = ["assert_means_the_same", "ran", "scheduled_by"]


def scheduled_by(name: str, func: Any) -> Any:
    """The PrimFunc as the rule `name` schedules it; it must take it."""
    rule = next(rule for rule in RULES if rule.name == name)
    result = rule.apply(func, to_tvm(resolve("cuda-sm90")))
    assert isinstance(result, Schedule), result
    return result.func


def assert_means_the_same(scheduled: Any, func: Any, tolerance: float = 1e-5) -> None:
    """Compare what both write into the last parameter, its error relative to its largest value."""
    assert race(scheduled) == ""
    arrays = random_inputs(func)
    got, want = (ran(each, arrays).astype(np.float64) for each in (scheduled, func))
    assert float(np.abs(got - want).max()) <= tolerance * float(np.abs(want).max())


def ran(func: Any, arrays: list[Any], late: int = 0) -> Any:
    """What a PrimFunc, scheduled or not, writes into the last of the arrays, which are left as they are.

    Threads run to their next barrier one after the other, the first `late` of them behind the others.
    """

    def in_order(loop: Any) -> Any:
        return _threads(loop, late) if loop.kind == tirx.ForKind.THREAD_BINDING else loop

    def launched(node: Any) -> Any:
        if node.attr_key != "thread_extent":
            return node
        zero = tirx.const(0, str(node.node.var.ty.dtype))
        extent = node.value.astype(str(zero.ty.dtype))
        return _threads(tirx.For(node.node.var, zero, extent, tirx.ForKind.SERIAL, node.body), late)

    made = tvm_ffi.structural_map(func, [(tirx.For, in_order), (tirx.AttrStmt, launched)])
    built = tvm.compile(tvm.IRModule({"main": made.with_attr("global_symbol", "main")}), target=quickly.target())
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built["main"](*tensors)
    return tensors[-1].numpy()


def _threads(loop: Any, late: int) -> Any:
    """The loop over threads in a loop's place, within what barriers separate."""

    def around(stmt: Any) -> Any:
        if _is_barrier(stmt):
            return tirx.Evaluate(0)
        if any(_is_barrier(each) for each in tir.collect(stmt, tirx.Evaluate)):
            if isinstance(stmt, tirx.SeqStmt):
                return tirx.SeqStmt([around(each) for each in stmt.seq])
            assert isinstance(stmt, tirx.For) and not tir.uses([stmt.min, stmt.extent], [loop.loop_var])
            return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, around(stmt.body))
        thread = loop.loop_var
        if late:
            turn = tirx.Var("turn", "int32")
            stmt = tirx.IfThenElse(turn == tirx.Select(thread < late, 1, 0), stmt, None)
        serial = tirx.For(thread, loop.min, loop.extent, tirx.ForKind.SERIAL, stmt)
        return tirx.For(turn, 0, 2, tirx.ForKind.SERIAL, serial) if late else serial

    return around(loop.body)


def _is_barrier(stmt: Any) -> bool:
    call = stmt.value if isinstance(stmt, tirx.Evaluate) else None
    return isinstance(call, Call) and getattr(call.op, "name", "") == "tirx.tvm_storage_sync"
