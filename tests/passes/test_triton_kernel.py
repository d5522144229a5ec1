"""Triton kernels in plugins: which matches they take, what is left as it is and why, and what a wrong one says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tvm import tirx
from tvm.relax import op

from relaxc.schedules.cuda.triton_call import TritonCall, call_of
from relaxc.service.errors import PluginError, ToolMissing
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import Optimized, load_plugin, optimize, triton_kernel
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, graph
from tests.triton_kernels import EXAMPLE, PLUGIN, gelu_add, plugin

CUDA = to_tvm(resolve("cuda-sm90"))


@pytest.fixture(autouse=True)
def some_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled here, so that Triton need not be installed."""
    monkeypatch.setattr(triton_kernel, "version_of", lambda name: "9.9")


def optimized(module: Any, path: Path, target: Any = CUDA, level: int = 2) -> Optimized:
    return optimize(module, target, CompileOptions(opt_level=level), plugins=[load_plugin(path)])


def calls(made: Optimized) -> list[TritonCall]:
    funcs = [func for func in made.module.functions.values() if isinstance(func, tirx.PrimFunc)]
    return [found for func in funcs if (found := call_of(func)) is not None]


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("shape", [(7,), (3, 5, 7)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_example_is_triton_on_cuda(dtype: str, shape: tuple[int, ...], level: int) -> None:
    """In 16 bits too, where casts are between the operators; nothing else is left to compute."""
    made = optimized(gelu_add(dtype, *shape), EXAMPLE, level=level)
    [found] = calls(made)
    assert found.name == "fused_gelu_add.gelu_add" and found.launches[0].constexprs == {"BLOCK": 1024}
    assert [(each.tensor, each.value) for each in found.arguments][-1] == (None, 7 if len(shape) == 1 else 105)
    reshaped = [name for name in made.report.fusions if "gelu" not in name]
    assert made.report.triton_declined == {} and not [name for name in reshaped if "reshape" not in name]


@pytest.mark.parametrize("target", [TARGET, CUDA])
def test_symbolic_sizes_get_the_prim_func_of_the_same_name(target: Any) -> None:
    made = optimized(gelu_add("float32", "n", 7), EXAMPLE, target)
    assert calls(made) == [] and any("gelu_add" in name for name in made.report.fusions)
    reasons = made.report.triton_declined
    assert bool(reasons) == (target is CUDA)
    if reasons:
        assert list(reasons) == ["triton: fused_gelu_add.gelu_add"] and "known at compile time" in str(reasons)
        assert made.report.to_dict()["triton_declined"] == reasons


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ((0, 4), "at least one, not"),
        (("n",), "known at compile time"),
        (("float64", (4,)), "not float64"),
    ],
)
def test_without_a_prim_func_the_match_stays(x: Any, said: str, tmp_path: Path) -> None:
    module = graph(lambda x: op.negative(x), x=x)
    made = optimized(module, plugin(tmp_path))
    assert calls(made) == [] and made.report.fusions == {"negative": 1}
    [(name, reason)] = made.report.triton_declined.items()
    assert name == "triton: mine.scaled" and said in reason


def test_a_target_that_triton_makes_no_code_for() -> None:
    """Its code for sm_90 has instructions of sm_90a, which this target says that no kernel has."""
    target = to_tvm(resolve('{"kind": "cuda", "arch": "sm_90"}'))
    made = optimized(gelu_add("float32", 4), EXAMPLE, target)
    assert calls(made) == [] and "sm_90a alone" in str(made.report.triton_declined)


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA it is an error of its own; a CPU does not need it."""
    monkeypatch.setattr(triton_kernel, "version_of", lambda name: None)
    with pytest.raises(
        ToolMissing, match=r"Triton is not installed, which compiles fused_gelu_add\.gelu_add"
    ) as caught:
        optimized(gelu_add("float32", 4), EXAMPLE)
    assert "pip install 'relaxc[triton]'" in caught.value.remedy
    assert calls(optimized(gelu_add("float32", 4), EXAMPLE, TARGET)) == []


def test_loading_a_plugin_does_not_load_triton() -> None:
    code = f"""
import sys
sys.modules["torch"] = None
from relaxc.service.passes import load_plugin
load_plugin({str(EXAMPLE)!r})
assert "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=EXAMPLE.parents[2], check=True)


WRONG = {
    "no such file": ("{file}", "elsewhere.py", r"in elsewhere\.py, and there is no such file"),
    "no literal": ('"{file}:scaled"', '"kernels" + ".py:scaled"', "must stand in the plugin as a literal"),
    "no function": ("{file}:scaled", "kernels.py", r"named FILE\.py:FUNCTION, not 'kernels\.py'"),
    "no kernel": ('"scaled": TritonKernel(', '"scaled": dict(kernel=', r"TRITON\['scaled'\] must be a TritonKernel"),
    "a grid of none": ("-(-y.size //", "0 * (y.size //", "its grid is 0; it has one to three numbers"),
    "a grid of four": ('-(-y.size // constants["WIDTH"])', "(1, 1, 1, 1)", r"its grid is \(1, 1, 1, 1\)"),
    "an argument": ("[x, y, y.size, 1, 0.5]", "[x, y, y.shape, 1, 0.5]", r"tensors and numbers, not \(4, 4\)"),
    "a bool": ("[x, y, y.size, 1, 0.5]", "[x, y, y.size, True, 0.5]", "bools are constexprs"),
    "a constexpr": ('"WIDTH": 256', '"WIDTH": [256]', r"WIDTH is \[256\]; constexprs are numbers"),
    "warps": ('"WIDTH": 256', '"WIDTH": 256, "num_warps": 3', "num_warps is 1, 2, 4, 8, 16 or 32, not 3"),
    "raises": ("y.size, 1", "y.sise, 1", r"mine\.py:10: AttributeError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_kernel_can_have(name: str, tmp_path: Path) -> None:
    old, new, said = WRONG[name]
    assert old in PLUGIN.replace("{{", "{").replace("}}", "}")
    text = PLUGIN.replace("{{", "{").replace("}}", "}").replace(old, new).replace("{file}", "kernels.py")
    with pytest.raises(PluginError, match=said) as caught:
        optimized(graph(lambda x: op.negative(x), x=(4, 4)), plugin(tmp_path, text))
    assert caught.value.fields["path"] == str(tmp_path / "mine.py")
