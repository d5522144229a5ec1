"""Nodes of the model through a pass: kept, taken over by readers, and given to what is new."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from relaxc.service.passes.common.origins import Follower, bindings, marked, name_of
from relaxc.service.passes.common.rewrite import rewrite_calls
from tests.passes.graphs import graph, weights

op = relax.op


def named(build: Any) -> tvm.IRModule:
    """A module whose variables come from nodes `n0`, `n1`, …"""
    module = graph(build, x=(4, 8))
    found = {binding.var: f"n{at}" for at, binding in enumerate(bindings(module["main"].body))}
    module.update_func(module.get_global_var("main"), marked(module["main"], found))
    return module


def nodes(module: tvm.IRModule) -> list[list[str]]:
    return [name_of(b.var).splitlines() for b in bindings(module["main"].body) if isinstance(b.value, relax.Call)]


def _chain(x: Any) -> Any:
    emit = relax.BlockBuilder.current().emit
    return op.abs(emit(op.nn.relu(emit(op.add(emit(op.exp(x)), weights(8))))))


def test_what_is_gone_went_into_its_reader_and_what_is_new_is_for_its_reader() -> None:
    """`relu(a + b) → tanh(sqrt(a) * b)`."""

    def rule(call: Any, scope: Any) -> Any:
        add = scope.call(call.args[0], "relax.add")
        return None if add is None else op.tanh(op.multiply(op.sqrt(add.args[0]), add.args[1]))

    before = named(_chain)
    assert nodes(before) == [["n0"], ["n1"], ["n2"], ["n3"]]
    after = Follower().follow(before, rewrite_calls(before, {"nn.relu": rule}))
    exp, sqrt, multiply, tanh, last = nodes(after)
    assert (exp, last) == (["n0"], ["n3"])
    assert sorted(sqrt) == sorted(multiply) == sorted(tanh) == ["n1", "n2"]


def test_a_call_that_is_made_again_keeps_its_nodes() -> None:
    """`relu(a + b) → relu(b + a)`: the addition is a new variable."""

    def rule(call: Any, scope: Any) -> Any:
        add = scope.call(call.args[0], "relax.add")
        if add is None or isinstance(add.args[0], tvm.ir.GenericConst):
            return None
        return op.nn.relu(scope.emit(op.add(add.args[1], add.args[0])))

    before = named(_chain)
    after = Follower().follow(before, rewrite_calls(before, {"nn.relu": rule}))
    assert nodes(after) == [["n0"], ["n1"], ["n2"], ["n3"]]


def test_a_pass_that_changes_nothing_gives_the_module_itself() -> None:
    before = named(_chain)
    assert Follower().follow(before, before) is before
