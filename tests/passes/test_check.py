"""What is checked between the phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.schedules.strict import STRICT
from relaxc.service.errors import CompileFailed, PluginError
from relaxc.service.passes import run_phases
from relaxc.service.passes.check import Boundary, check
from relaxc.service.passes.phase import Phase
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, graph


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


def wrong_type() -> tvm.IRModule:
    """`exp` of [2, 4], whose variable says that it has 3 rows."""
    x = relax.Var("x", relax.TensorType([2, 4], "float32"))
    y = relax.Var("y", relax.TensorType([3, 4], "float32"))
    blocks = [relax.BindingBlock([relax.VarBinding(y, relax.BlockBuilder().normalize(op.exp(x)))])]
    function = relax.Function([x], relax.SeqExpr(blocks, y), x.ty).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": function})


def test_types_are_derived_anew_where_that_is_asked_for() -> None:
    module = wrong_type()
    with pytest.raises(CompileFailed, match="not well-formed"):
        check(module, Boundary(module), "simplify")
    check(module, Boundary(module), "simplify", types=False)


@pytest.mark.parametrize(("strict", "named"), [("1", "layout"), ("", "weights")])
def test_wrong_types_are_found_at_the_end_where_not_at_once(
    strict: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tvm.transform.module_pass(opt_level=0, name="Breaks")
    class Breaks:
        def transform_module(self, module: tvm.IRModule, _context: Any) -> tvm.IRModule:
            return wrong_type()

    def two_phases(target: Any, job: Any) -> list[Phase]:
        return [Phase("layout", 0, [Breaks()]), Phase("weights", 0, [relax.transform.ToNonDataflow()])]

    monkeypatch.setenv(STRICT, strict)
    monkeypatch.setattr(run_phases, "phases", two_phases)
    with pytest.raises(CompileFailed, match="not well-formed") as caught:
        run_phases.optimize(graph(lambda x: op.exp(x), x=(2, 4)), TARGET, CompileOptions())
    assert caught.value.fields["phase"] == named
