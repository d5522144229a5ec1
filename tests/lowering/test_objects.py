"""Objects of kernels: equal texts give equal bytes, wherever they are built; what calls another is one with it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from relaxc.service.lowering import build
from relaxc.service.lowering.objects import grouped, kernel_of, kernels_of, object_of, text_of
from relaxc.service.lowering.target import resolve
from relaxc.service.process.timings import Timings
from tests.lowering.test_build import ready


def texts_of(target: str, rows: tuple[int, ...] = (30, 31, 32)):
    """Kernels of layers with these numbers of rows, by names that no model has."""
    texts = {}
    for m in rows:
        module, spec = ready(target, m)
        texts |= {f"{name}_{m}": text for name, kernel in kernels_of(module).items() if (text := text_of(kernel))}
    return texts, spec


def test_each_prim_func_has_a_text_and_equal_texts_give_equal_objects() -> None:
    texts, spec = texts_of("x86-64-v3")
    again, _ = texts_of("x86-64-v3")
    assert texts == again
    assert len(texts) == 3
    timings = Timings()
    for text in texts.values():
        made = object_of(kernel_of(text), spec, timings)
        assert made[:4] == b"\x7fELF"
        assert made == object_of(kernel_of(text), spec, Timings())
    assert {"llvm", "emit", "tir.UnrollLoop"} <= timings.seconds.keys()
    assert "tir.CommonSubexprElim" not in timings.seconds  # LLVM does it


def test_a_kernel_and_its_text_give_equal_objects() -> None:
    module, spec = ready("x86-64-v4")
    for kernel in kernels_of(module).values():
        assert object_of(kernel_of(text_of(kernel)), spec, Timings()) == object_of(kernel, spec, Timings())


def test_a_text_says_all_that_the_code_depends_on() -> None:
    texts, _ = texts_of("x86-64-v3")
    assert len(set(texts.values())) == 3


def test_constants_are_written_to_the_bit() -> None:
    for value in (0.1, 1 / 3, 1e-45, 2.3e-308, -0.0, 1.7976931348623157e308, float("inf"), float("nan"), 1 + 2**-52):
        back = tvm.ir.load_json(tvm.ir.save_json(tvm.tirx.const(value, "float64"))).value
        assert np.float64(back).tobytes() == np.float64(value).tobytes()


@T.prim_func(s_tir=True)
def subnormal(a: T.Buffer((1,), "float64")):
    T.func_attr({"global_symbol": "subnormal"})
    a[0] = T.float64(5e-324)


@T.prim_func(s_tir=True)
def imports(a: T.Buffer((1,), "float32")):
    T.func_attr({"global_symbol": "imports"})
    for i in T.serial(1, annotations={"pragma_import_llvm": "/somewhere/f.ll"}):
        a[i] = T.float32(0)


@pytest.mark.parametrize("function", [subnormal, imports], ids=["an unreadable constant", "a file"])
def test_what_a_text_does_not_say_is_built_without_it(function) -> None:
    assert text_of(tvm.IRModule({"f": function})) is None


def test_what_has_no_text_is_built_here() -> None:
    assert object_of(tvm.IRModule({"subnormal": subnormal}), resolve("auto"), Timings())


@I.ir_module
class Calls:
    @T.prim_func(private=True, s_tir=True)
    def inner(a: T.float32) -> T.float32:
        return a + T.float32(1)

    @T.prim_func(s_tir=True)
    def outer(a: T.Buffer((1,), "float32")):
        T.func_attr({"global_symbol": "outer"})
        a[0] = Calls.inner(a[0])

    @T.prim_func(s_tir=True)
    def other(a: T.Buffer((1,), "float32")):
        T.func_attr({"global_symbol": "other"})
        a[0] = T.float32(0)


def functions_of(kernel) -> set[str]:
    return {str(var.name_hint) for var in kernel.functions}


def test_what_calls_another_is_one_kernel_with_it() -> None:
    kernels = kernels_of(Calls)
    assert kernels.keys() == {"inner", "other"}
    assert functions_of(kernels["inner"]) == {"inner", "outer"}


def test_an_object_has_a_few_kernels_and_which_depends_on_their_names_alone() -> None:
    kernels = {f"f{index}": tvm.IRModule({f"f{index}": Calls["other"]}) for index in (6, 1, 3, 0, 2, 5, 4)}
    groups = grouped(kernels)
    assert {name: functions_of(group) for name, group in groups.items()} == {
        "f0, f3, f6": {"f0", "f3", "f6"},
        "f1, f4": {"f1", "f4"},
        "f2, f5": {"f2", "f5"},
    }
    again = grouped({name: kernels[name] for name in sorted(kernels)})
    assert {name: text_of(group) for name, group in again.items()} == {n: text_of(g) for n, g in groups.items()}
    assert grouped({}) == {}


def test_kernels_that_are_together_have_a_text_and_its_object() -> None:
    module, spec = ready("x86-64-v3")
    (one,) = kernels_of(module).values()
    (group,) = grouped({"one": one, "other": tvm.IRModule({"other": Calls["other"]})}).values()
    assert functions_of(group) == functions_of(one) | {"other"}
    text = text_of(group)
    assert text is not None
    assert object_of(kernel_of(text), spec, Timings()) == object_of(group, spec, Timings())


def test_objects_from_elsewhere_are_linked_as_those_of_this_process(tmp_path) -> None:
    module, spec = ready("auto")
    asked: list[str] = []

    def elsewhere(texts, spec, timings):
        asked.extend(texts)
        return {name: object_of(kernel_of(texts[name]), spec, timings) for name in reversed(list(texts))}

    build(module, spec, tmp_path / "one.so")
    build(module, spec, tmp_path / "two.so", objects=elsewhere)
    assert asked
    assert (tmp_path / "one.so").read_bytes() == (tmp_path / "two.so").read_bytes()


def test_what_is_warmed_up_can_be_forked() -> None:
    script = (
        "import os, gc\n"
        "from relaxc.service.lowering.objects import warm_up\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "warm_up()\n"
        "assert len(os.listdir('/proc/self/task')) == before and gc.get_freeze_count()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
