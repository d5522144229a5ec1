"""State is written where it lies: a kernel that copies it and changes some of it only changes that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import TensorLoad

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.describe import kernel_of, whole_of
from relaxc.schedules.ir.kernel import KERNEL
from relaxc.service.passes.common.rewrite import op_name, with_functions
from relaxc.service.passes.report import OptimizeReport

__all__ = ["UpdateInPlace"]


@tvm.transform.module_pass(opt_level=0, name="UpdateInPlace")
class UpdateInPlace:
    """`next = call_tir(write, (state, …))` becomes `call_tir_inplace(write without its copy, (state, …))`.

    `main` takes its state behind its inputs, `count` parameters, and returns their next values last. A write is a
    PrimFunc whose first statement copies a buffer whole into the result, and whose others do not read it.
    Leave a state whose next value comes otherwise, or that is read as it was after the write: it gets a new buffer, and
    the report says why.
    """

    def __init__(self, count: int, report: OptimizeReport) -> None:
        self.count, self.report = count, report

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module whose writes into state copy nothing."""
        if not self.count:
            return module
        main, inputs = module["main"], int(module["main"].attrs["num_input"])
        for place, param in enumerate(list(main.params)[inputs - self.count : inputs]):
            name = str(param.name).removeprefix("state_")
            main = module["main"]
            param, results = main.params[inputs - self.count + place], _results(main)
            outcome = _updated(module, param, results[len(results) - self.count + place])
            if isinstance(outcome, str):
                self.report.state[name] = outcome
            else:
                self.report.state[name], module = "in place", outcome
        return relax.transform.Normalize()(module)


def _results(main: relax.Function) -> list[Any]:
    result = main.body.body
    bound = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    result = bound.get(result, result)
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


def _updated(module: IRModule, state: relax.Var, result: relax.Expr) -> IRModule | str:
    """The module with the writes into `state` in place, or why they are not."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}
    writes: dict[relax.Var, tuple[int, tirx.PrimFunc]] = {}
    var = _root(result, bound)
    while var is not state and not var.same_as(state):
        value: Any = bound.get(var)
        if op_name(value) != "relax.call_tir" or (made := _without_copy(module, value)) is None:
            return "a new buffer: its next value is computed, not written into it"
        writes[var] = made
        var = _root(value.args[1].fields[made[0]], bound)
    if not writes:
        return "as it is: its next value is its last"
    if (reader := _late_reader(bindings, bound, main, state, list(writes))) is not None:
        return f"a copy: {reader} reads it as it was before"
    changed: dict[Any, Any] = {}
    builder = relax.BlockBuilder(module)
    for each, (place, function) in writes.items():
        call = bound[each]
        kernel = builder.add_func(function, f"{call.args[0].name_hint}_in_place")  # of equal ones the first
        changed[each] = relax.op.call_tir_inplace(kernel, call.args[1], [place], each.ty)
    module = builder.get()
    return with_functions(module, {module.get_global_var("main"): _rebound(main, changed)})


def _rebound(main: relax.Function, changed: dict[Any, Any]) -> relax.Function:
    def block(old: Any) -> Any:
        bindings = [
            relax.VarBinding(each.var, changed[each.var]) if each.var in changed else each for each in old.bindings
        ]
        return relax.DataflowBlock(bindings) if isinstance(old, relax.DataflowBlock) else relax.BindingBlock(bindings)

    body = relax.SeqExpr([block(each) for each in main.body.blocks], main.body.body)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)


def _root(expr: relax.Expr, bound: dict[Any, Any]) -> Any:
    """What `expr` is a view of."""
    while True:
        value: Any = bound.get(expr)
        if isinstance(value, relax.Var):
            expr = value
        elif op_name(value) == "relax.reshape":
            expr = value.args[0]
        else:
            return expr


def _late_reader(
    bindings: Sequence[Any], bound: dict[Any, Any], main: relax.Function, state: relax.Var, writes: Sequence[relax.Var]
) -> str | None:
    """What reads a value of the state after the write that it is gone with; None where nothing does."""
    steps = {binding.var: step for step, binding in enumerate(bindings)}
    order = [state, *reversed(writes)]  # each is gone with the next
    for before, after in itertools.pairwise(order):
        names = {before}
        for binding in bindings:
            read = set(relax.analysis.free_vars(binding.value)) & names
            if not read:
                continue
            if binding.var == after:
                if sum(_root(each, bound) == before for each in binding.value.args[1].fields) > 1:
                    return "the write itself"
                continue
            if _root(binding.var, bound) in names or isinstance(binding.value, relax.Tuple | relax.TupleGetItem):
                names.add(binding.var)
            elif steps[binding.var] > steps[after]:
                return _name(binding)
        if names & {var for field in _results(main) for var in relax.analysis.free_vars(field)}:
            return "an output"
    return None


def _name(binding: Any) -> str:
    value = binding.value
    return str(value.args[0].name_hint) if op_name(value) == "relax.call_tir" else str(binding.var.name)


def _without_copy(module: IRModule, call: relax.Call) -> tuple[int, tirx.PrimFunc] | None:
    """Which argument a kernel copies whole into its result before it writes some of that, and the kernel without
    the copy, which writes into the argument; None for others.
    """
    function, arguments = module[call.args[0]], call.args[1]
    if len(call.args) > 2 or not all(map(tirx.is_buffer_var, function.params)):
        return None
    if len(arguments.fields) + 1 != len(function.params):
        return None
    *sources, result = function.params
    for loop in _loops(function.body):
        store = _innermost(loop)
        if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(result):
            continue
        place = next((at for at, source in enumerate(sources) if _copies(store, source)), None)
        if place is None:
            return None  # something else is written first
        body = _without(function.body, loop)
        if any(load.source.same_as(sources[place]) for load in tir.loads(body)):
            return None
        written = tir.substitute(body, {result: sources[place]})
        made = tirx.PrimFunc(sources, written, function.ret_type, attrs=function.attrs)
        kernel = replace(whole_of(made), nodes=kernel_of(function).nodes)  # it computes less than the one that copies
        return place, made.with_attr(KERNEL, kernel.to_json())
    return None


def _copies(store: tirx.BufferStore, source: Any) -> bool:
    """Whether an element is stored that is at the same place of a buffer of the same shape."""
    value = store.value
    return (
        isinstance(value, TensorLoad)
        and value.source.same_as(source)
        and tir.same(value.indices, store.indices)
        and tir.same(source.shape, store.buffer.shape)
        and str(source.dtype) == str(store.buffer.dtype)
    )


def _innermost(stmt: Any) -> Any:
    """What is alone in a nest of loops, threads and conditions."""
    while True:
        if isinstance(stmt, tirx.For | tirx.AttrStmt):
            stmt = stmt.body
        elif isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
            stmt = stmt.then_case
        else:
            return stmt


def _loops(stmt: Any) -> Iterator[Any]:
    """The loops and launches of a body that are in no other, in the order in which they run."""
    if isinstance(stmt, s_tir.SBlockRealize):
        yield from _loops(stmt.block.body)
    elif isinstance(stmt, tirx.SeqStmt):
        for each in stmt.seq:
            yield from _loops(each)
    elif isinstance(stmt, tirx.AttrStmt) and stmt.attr_key != "thread_extent":
        yield from _loops(stmt.body)
    else:
        yield stmt


def _without(body: Any, loop: Any) -> Any:
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    kinds = (tirx.For, tirx.AttrStmt)
    return tvm_ffi.structural_map(body, (kinds, lambda each: nothing if each.same_as(loop) else each))
