"""Reductions are called after the position of their operand: the same in every place of every model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi

from relaxc.schedules.ir.blocks import block_names
from relaxc.schedules.ir.describe import kernel_of
from relaxc.service.passes.legalize.legalize import Legalize
from relaxc.service.passes.legalize.name_blocks import NameBlocks
from tests.passes.graphs import compute, graph, random

R = relax.op


def emit(expr: relax.Expr) -> relax.Var:
    """The expression as a variable of the function that is built."""
    return relax.BlockBuilder.current().emit(expr)


def named(module: tvm.IRModule) -> dict[str, Any]:
    """The PrimFuncs of a module after the pass, by name."""
    legal = relax.transform.DeadCodeElimination()(NameBlocks()(Legalize([])(module)))
    return {str(var.name_hint): func for var, func in legal.functions_items() if isinstance(func, tirx.PrimFunc)}


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: R.mean(x, [-1]),
    "sum": lambda x: R.sum(x, [1]),
    "variance": lambda x: R.variance(x, [-1]),
    "argmax": lambda x: R.argmax(x, -1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_kernel_is_the_same_wherever_it_stands(name: str) -> None:
    reduce = REDUCTIONS[name]
    first = named(graph(lambda image: reduce(image), image=(3, 4, 5)))[name]
    later = named(graph(lambda a, b: (R.exp(a), reduce(emit(R.exp(b)))), a=(2,), b=(3, 4, 5)))
    assert kernel_of(first).digest == kernel_of(later[name]).digest
    assert not [block for block in block_names(later[name]) if block.startswith(("lv", "b_"))]


def test_what_is_computed_stays() -> None:
    module = graph(lambda x: R.add(R.max(x, [1]), R.mean(x, [1])), x=(3, 4))
    array = random(3, 4)
    for got, want in zip(compute(NameBlocks()(Legalize([])(module)), array), compute(module, array), strict=True):
        assert (got == want).all()


def test_names_stay_apart_and_other_blocks_keep_theirs() -> None:
    a, b = te.placeholder((8, 4), name="a"), te.placeholder((8, 4), name="a")
    left, right = topi.sum(a, axis=1), topi.sum(b, axis=1)
    total = te.compute((8,), lambda i: left[i] + right[i], "a_scores")
    func = te.create_prim_func([a, b, total])
    [(_, changed)] = NameBlocks()(tvm.IRModule({"main": func})).functions_items()
    assert block_names(func) == {"a_red", "a_red_1", "a_scores"}
    assert block_names(changed) == {"x0_red", "x0_red_1", "a_scores"}
    assert tvm_ffi.structural_equal(changed, func)


def test_a_module_without_any_is_the_same_object() -> None:
    a = te.placeholder((8,), name="a")
    module = tvm.IRModule({"main": te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0, "b")])})
    assert NameBlocks()(module).same_as(module)
