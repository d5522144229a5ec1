"""Checks of arguments: kept where a stranger's tensor comes in, left out where the VM made it itself."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from relaxc.service.lowering import build
from relaxc.service.lowering.objects import kernels_of, object_of
from relaxc.service.lowering.target import resolve
from relaxc.service.lowering.trusted_arguments import trust_arguments
from relaxc.service.process.timings import Timings
from tests.lowering.test_build import lowered
from tests.schedules.harness import legalized

SPEC = resolve("auto")


def trusted(module) -> set[str]:
    """The kernels that do not check."""
    found = trust_arguments(module).functions_items()
    return {str(var.name_hint) for var, f in found if f.attrs and f.attrs.get("relaxc.trusted_arguments")}


def two_kernels(rows: int | str = 30):
    """A product of inputs, and what reads its result."""
    legal = legalized(lambda x, w: relax.op.nn.softmax(relax.op.matmul(x, w)), [(rows, 40), (40, 64)], ["float32"] * 2)
    return lowered(legal, SPEC)


def test_who_reads_an_input_checks_it_and_who_reads_the_vms_own_does_not() -> None:
    assert trusted(two_kernels()) == {"softmax"}


def test_symbolic_sizes_are_checked() -> None:
    assert trusted(two_kernels("n")) == set()


def test_less_code_and_the_same_numbers(tmp_path) -> None:
    module = two_kernels()
    build(module, SPEC, tmp_path / "model.so")
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "model.so")), tvm.cpu())
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((30, 40), np.float32), rng.standard_normal((40, 64), np.float32)
    powers = np.exp((x @ w) - (x @ w).max(-1, keepdims=True))
    got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
    np.testing.assert_allclose(got, powers / powers.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)
    with pytest.raises(Exception, match="float32"):
        machine["main"](tvm.runtime.tensor(x.astype("float64")), tvm.runtime.tensor(w))
    checked, not_checked = (kernels_of(each)["softmax"] for each in (module, trust_arguments(module)))
    sizes = [len(object_of(kernel, SPEC, Timings())) for kernel in (checked, not_checked)]
    assert sizes[1] < sizes[0]


FOUR = relax.const(np.ones(4, "float32"))


@I.ir_module
class Calls:
    @T.prim_func(s_tir=True)
    def of_input(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        b[0] = a[0]

    @T.prim_func(s_tir=True)
    def of_weight(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        b[0] = a[0]

    @T.prim_func(s_tir=True)
    def of_own(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        b[0] = a[0]

    @T.prim_func(s_tir=True)
    def of_constant(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        b[0] = a[0]

    @T.prim_func(s_tir=True)
    def of_both(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        b[0] = a[0]

    @T.prim_func(s_tir=True)
    def that_asserts(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        assert a[0] < T.float32(2), "large"
        b[0] = a[0]

    @T.prim_func(s_tir=True)
    def called_by_name(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        b[0] = a[0]

    @T.prim_func(s_tir=True)
    def never_called(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        b[0] = a[0]

    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), weights: R.Tuple(R.Tensor((4,), "float32"))):
        R.func_attr({"num_input": 1})
        w = weights[0]
        storage: R.Any = R.vm.alloc_storage(R.shape([32]), 0, R.dtype("uint8"), R.str("global"))
        a: R.Tensor((4,), "float32") = R.vm.alloc_tensor(storage, 0, R.shape([4]), R.dtype("float32"), 0)
        b: R.Tensor((4,), "float32") = R.vm.alloc_tensor(storage, 16, R.shape([4]), R.dtype("float32"), 0)
        _ = Calls.of_input(x, a)
        _1 = Calls.of_weight(w, a)
        _2 = Calls.of_own(a, b)
        _3 = Calls.of_both(a, b)
        _4 = Calls.of_both(a, x)
        _5 = Calls.of_constant(FOUR, a)
        _7 = Calls.that_asserts(a, b)
        _8 = Calls.called_by_name(a, b)
        _9 = R.call_packed("vm.builtin.call_tir_dyn", Calls.called_by_name, (x, b), ty_args=(R.Tuple,))
        return b


def test_what_is_trusted() -> None:
    assert trusted(Calls) == {"of_weight", "of_own", "of_constant"}


def test_without_a_word_on_weights_all_parameters_are_strangers() -> None:
    module = Calls.clone()
    module.update_func(module.get_global_var("main"), module["main"].without_attr("num_input"))
    assert trusted(module) == {"of_own", "of_constant"}
