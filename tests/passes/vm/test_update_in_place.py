"""UpdateInPlace: which writes into state copy nothing, on CPUs and GPUs, and why others stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm import relax, tirx
from tvm.relax import op

from relaxc.schedules.ir.describe import kernel_of
from relaxc.schedules.ir.kernel import KERNEL
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes.common.rewrite import op_name
from relaxc.service.passes.report import OptimizeReport
from relaxc.service.passes.vm.lift_weights import LiftWeights
from relaxc.service.passes.vm.update_in_place import UpdateInPlace

Body = Callable[[relax.BlockBuilder, Any, Any, Any], list[Any]]


def written(bb: relax.BlockBuilder, state: Any, places: Any, rows: Any) -> Any:
    return bb.emit(op.scatter_elements(state, places, rows, axis=1))


def result(
    body: Body, target: str = "x86-64-v3", then: Callable[[Any], Any] = lambda module: module
) -> tuple[Any, str]:
    """The module of a step, and what is told of its one state."""
    bb = relax.BlockBuilder()
    shapes = {"rows": ((2, 1, 4), "float32"), "places": ((2, 1, 4), "int64"), "state_s": ((2, 8, 4), "float32")}
    rows, places, state = (relax.Var(name, relax.TensorType(*shape)) for name, shape in shapes.items())
    with bb.function("main", [rows, places, state]):
        with bb.dataflow():
            results = bb.emit_output(relax.Tuple(body(bb, state, places, rows)))
        bb.emit_func_output(results)
    report = OptimizeReport()
    with to_tvm(resolve(target)):
        module = relax.transform.LegalizeOps()(bb.get())
        module = relax.transform.RewriteDataflowReshape()(module)
        made = UpdateInPlace(1, report)(LiftWeights({})(then(module)))
    relax.analysis.well_formed(made)
    return made, report.state["s"]


def calls(module: Any) -> list[str]:
    main = module["main"]
    return [op_name(binding.value) for block in main.body.blocks for binding in block.bindings]


@pytest.mark.parametrize("target", ["x86-64-v3", "cuda-sm90"])
def test_a_row_is_written_where_the_state_lies(target: str) -> None:
    def body(bb: relax.BlockBuilder, state: Any, places: Any, rows: Any) -> list[Any]:
        before = bb.emit(op.gather_elements(state, places, axis=1))
        after = written(bb, written(bb, state, places, rows), places, before)
        return [bb.emit(op.sum(after)), after]

    module, told = result(body, target)
    assert told == "in place"
    assert calls(module).count("relax.call_tir_inplace") == 2
    kernel = next(f for g, f in module.functions_items() if "in_place" in str(g.name_hint))
    assert len(kernel.params) == 3


def test_the_kernel_in_place_is_another_one_than_the_copying_one() -> None:
    """A record of one is none of the other; the nodes of the model are the same."""

    def body(bb: relax.BlockBuilder, state: Any, places: Any, rows: Any) -> list[Any]:
        after = written(bb, state, places, rows)
        return [bb.emit(op.sum(after)), after]

    def described(module: Any) -> Any:
        kernels = {v: f for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
        named = {v: replace(kernel_of(f), nodes=("write",)).to_json() for v, f in kernels.items()}
        for var, text in named.items():
            module.update_func(var, kernels[var].with_attr(KERNEL, text))
        return module

    module, told = result(body, then=described)
    assert told == "in place"
    kernels = {str(v.name_hint): kernel_of(f) for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
    (name,) = (name for name in kernels if name.endswith("_in_place"))
    before, after = kernels[name.removesuffix("_in_place")], kernels[name]
    assert before.digest != after.digest and before.nodes == after.nodes == ("write",)


def test_a_view_of_the_state_is_the_state() -> None:
    def body(bb: relax.BlockBuilder, state: Any, places: Any, rows: Any) -> list[Any]:
        flat = bb.emit(op.reshape(state, (2, 8, 2, 2)))
        last = written(bb, bb.emit(op.reshape(flat, (2, 8, 4))), places, rows)
        return [bb.emit(op.sum(last)), bb.emit(op.reshape(bb.emit(op.reshape(last, (16, 4))), (2, 8, 4)))]

    assert result(body)[1] == "in place"


def later(bb: relax.BlockBuilder, state: Any, places: Any, rows: Any) -> list[Any]:
    after = written(bb, state, places, rows)
    return [bb.emit(op.sum(state)), after]


def returned(bb: relax.BlockBuilder, state: Any, places: Any, rows: Any) -> list[Any]:
    view = bb.emit(op.reshape(state, (16, 4)))
    return [view, written(bb, state, places, rows)]


def twice(bb: relax.BlockBuilder, state: Any, places: Any, rows: Any) -> list[Any]:
    """Two writes into the same value, of which the second is kept."""
    one = written(bb, state, places, rows)
    return [bb.emit(op.sum(one)), written(bb, state, places, rows)]


def computed(bb: relax.BlockBuilder, state: Any, places: Any, rows: Any) -> list[Any]:
    return [bb.emit(op.sum(rows)), bb.emit(op.add(state, state))]


@pytest.mark.parametrize(("body", "told"), [(later, "a copy"), (returned, "a copy"), (computed, "a new buffer")])
def test_what_is_read_afterwards_keeps_its_value(body: Body, told: str) -> None:
    module, why = result(body)
    assert why.startswith(told)
    assert "relax.call_tir_inplace" not in calls(module)


def test_a_write_beside_another_one_comes_after_it() -> None:
    module, why = result(twice)
    assert why == "in place"  # the first reads the state before the second changes it
    assert calls(module).count("relax.call_tir_inplace") == 1
