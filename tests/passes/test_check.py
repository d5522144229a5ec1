"""What is checked between the phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op

from service.errors import CompileFailed, PluginError
from service.passes.check import Boundary, check
from tests.passes.graphs import graph


def base() -> tvm.IRModule:
    return graph(lambda x: op.exp(x), x=("n", 4))


def without_main() -> tvm.IRModule:
    return tvm.IRModule()


def unbound_variable() -> tvm.IRModule:
    x, y = (relax.Var(name, relax.TensorType([2, 4], "float32")) for name in "xy")
    body = relax.SeqExpr([], relax.Tuple([y]))
    function = relax.Function([x], body, relax.TupleType([y.ty])).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": function})


BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "main is gone": (without_main, "removed the function main"),
    "a free variable": (unbound_variable, "not well-formed"),
    "an input less": (lambda: graph(lambda: op.zeros([2, 4], "float32")), "number of inputs or outputs"),
    "an output more": (lambda: graph(lambda x: (op.exp(x), op.abs(x)), x=("n", 4)), "number of inputs or outputs"),
    "an input's dtype": (lambda: graph(lambda x: op.astype(x, "float32"), x=("float16", ("n", 4))), "changed x"),
    "an input's rank": (lambda: graph(lambda x: op.reshape(x, [1, 4]), x=(4,)), "changed x"),
    "an output's size": (lambda: graph(lambda x: op.concat([x, x], axis=1), x=("n", 4)), "changed output 0"),
    "an output's dtype": (lambda: graph(lambda x: op.astype(x, "float16"), x=("n", 4)), "changed output 0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    build, message = BROKEN[name]
    with pytest.raises(CompileFailed, match=message) as caught:
        check(build(), Boundary(base()), "simplify")
    assert caught.value.fields["phase"] == "simplify"


def test_the_same_from_outside() -> None:
    check(graph(lambda x: op.abs(op.exp(x)), x=("m", 4)), Boundary(base()), "simplify")


def test_the_failure_is_the_callers() -> None:
    with pytest.raises(PluginError):
        check(without_main(), Boundary(base()), "plugins", PluginError)
