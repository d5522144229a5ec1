"""LiftWorkspaces: what a kernel keeps in global memory is a tensor of the plan, which its calls hand over."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir, te, tirx
from tvm.relax import op

from relaxc.schedules.ir import tir
from relaxc.service.lowering import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import finalize, optimize
from relaxc.service.passes.common.rewrite import op_name
from relaxc.service.passes.vm.lift_workspaces import LiftWorkspaces
from relaxc.service.request import CompileOptions
from tests import quickly
from tests.passes.graphs import graph

ALLOC = "relax.builtin.alloc_tensor"


def two_stages(a, rows=None):
    """Twice the squares, which stay in global memory between two nests; rows may be counted by another size."""
    count = a.shape[0] if rows is None else rows
    square = te.compute((count, a.shape[1]), lambda i, j: a[i % a.shape[0], j] * a[i % a.shape[0], j], name="square")
    return te.compute(a.shape, lambda i, j: square[i, j] * 2.0, name="twice")


def module(rows: int | str, compute=two_stages) -> tvm.IRModule:
    """`main(x) = f(f(x))` with the calls as CallTIRRewrite leaves them."""
    size = tirx.Var(rows, "int64") if isinstance(rows, str) else rows
    x = relax.Var("x", relax.TensorType((size, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        y = builder.emit(builder.call_te(compute, x, primfunc_name_hint="f"))
        builder.emit_func_output(builder.emit(builder.call_te(compute, y, primfunc_name_hint="f")))
    passes = [relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite()]
    return tvm.ir.transform.Sequential(passes)(builder.get())


def allocated(function: relax.Function) -> list[tuple[str, str]]:
    values = [binding.value for block in function.body.blocks for binding in block.bindings]
    return [(str(v.args[0]), str(v.ty.dtype)) for v in values if op_name(v) == ALLOC]


def workspaces(module: tvm.IRModule) -> list[str]:
    funcs = [func for _, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
    return [str(buffer.name) for func in funcs for buffer in func.body.block.alloc_buffers]


def test_a_workspace_is_allocated_for_each_call() -> None:
    before = module(3)
    after = LiftWorkspaces()(before)
    assert workspaces(before) == ["square"] and workspaces(after) == []
    assert len(allocated(before["main"])) == 2 and len(allocated(after["main"])) == 4
    relax.analysis.well_formed(after)
    (func,) = (func for _, func in after.functions_items() if isinstance(func, tirx.PrimFunc))
    assert [str(param.name) for param in func.params][-1] == "square"


def test_a_module_without_is_the_same() -> None:
    before = module(3, lambda a: te.compute(a.shape, lambda i, j: a[i, j] * 2.0))
    assert LiftWorkspaces()(before).same_as(before)


def test_sizes_are_those_of_the_call() -> None:
    after = LiftWorkspaces()(module("n"))
    assert workspaces(after) == []
    assert {shape for shape, _ in allocated(after["main"])} == {"R.shape([n, 4])"}
    given = np.arange(20, dtype=np.float32).reshape(5, 4)
    machine = relax.VirtualMachine(relax.build(after, quickly.target()), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(given)).numpy()
    np.testing.assert_array_equal(got, 2 * (2 * given**2) ** 2)


def test_a_size_that_no_argument_tells_stays() -> None:
    """The PrimFunc's own variable, in the place of a size of what it allocates."""
    before = module(3)
    (var,) = (var for var, func in before.functions_items() if isinstance(func, tirx.PrimFunc))
    func = before[var]
    square = tirx.decl_buffer((tirx.Var("m", "int64"), 4), "float32", "square", layout=None)
    root = func.body.block
    block = s_tir.SBlock([], [], [], root.name_hint, root.body, alloc_buffers=[square])
    changed = before.clone()
    changed.update_func(var, func.with_body(s_tir.SBlockRealize([], True, block)))
    assert LiftWorkspaces()(changed).same_as(changed)


def test_what_scans_keep_is_planned_on_cuda() -> None:
    """The sums of parts of each row, which a kernel may not allocate."""
    spec = resolve("cuda-sm90")
    target = to_tvm(spec)
    optimized = optimize(graph(lambda x: op.cumsum(x, axis=1), x=(8, 100)), target, CompileOptions())
    scheduled = schedule(optimized.module, spec).module
    assert kept_globally(scheduled)
    lowered, memory = finalize(scheduled, target)
    assert not kept_globally(lowered)
    assert memory.planned_bytes >= 8 * 4


def kept_globally(module: Any) -> list[Any]:
    """The buffers of global memory that kernels allocate, in blocks or by statements."""
    funcs = [func for _, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
    rooted = [func for func in funcs if isinstance(func.body, s_tir.SBlockRealize)]
    found = [buffer for func in rooted for buffer in func.body.block.alloc_buffers]
    found += [each.buffer for func in funcs for each in tir.collect(func.body, tirx.AllocBuffer)]
    return [buffer for buffer in found if buffer.scope() == "global"]
