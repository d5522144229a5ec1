"""Triton kernels in a library: launched by TVM's host code, their machine code beside the other kernels'."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from tvm.relax import op

import relaxc
from relaxc.schedules.cuda.triton_call import Argument
from relaxc.service.config import settings
from relaxc.service.errors import PluginError
from relaxc.service.lowering import build, schedule
from relaxc.service.lowering.build import build_kernel
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import finalize, load_plugin, optimize
from relaxc.service.request import CompileOptions
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write
from tests.gpu import needs_gpu
from tests.passes.graphs import graph, weights
from tests.triton_kernels import EXAMPLE, KERNELS, call, disassembled, gelu_add, needs_triton, plugin

BOTH = "cuda-sm80,cuda-sm90"
ELF = re.compile(rb"\x7fELF\x02\x01\x01[\x33\x07\x41]")


def library(module: Any, folder: Path, path: Path = EXAMPLE, target: str = "cuda-sm90") -> bytes:
    """Return the library of a module for a target, compiled with a plugin."""
    spec = resolve(target)
    made = optimize(module, to_tvm(spec), CompileOptions(), plugins=[load_plugin(path)])
    ready, _ = finalize(schedule(made.module, spec).module, to_tvm(spec))
    build(ready, spec, folder / "model.so")
    assert sorted(path.name for path in folder.glob("model.so*")) == ["model.so"]
    return (folder / "model.so").read_bytes()


def cubins(binary: bytes) -> list[bytes]:
    """Return the machine code in a library, each from its beginning to the library's end."""
    return [binary[found.start() :] for found in ELF.finditer(binary) if found.start() > 0]


@needs_triton
def test_its_machine_code_is_in_the_library(tmp_path: Path) -> None:
    """Nothing but the kernel's code: no source of it, and none of the text that stood for it."""
    made = library(gelu_add("float16", 33, 77), tmp_path)
    [image] = cubins(made)
    shown = disassembled(image, tmp_path)
    assert re.search(r"Function : triton_gelu_add_[0-9a-f]{16}", shown) and "LDG" in shown
    assert b"tl.load" not in made and b"__global__" not in made


@needs_triton
@pytest.mark.slow
def test_it_is_beside_other_kernels(tmp_path: Path) -> None:
    low = ("float16", (64, 64))
    module = graph(lambda x, y: op.add(op.nn.gelu(op.matmul(x, x)), y), x=low, y=low)
    made = library(module, tmp_path)
    assert len(cubins(made)) == 2 and b"triton_gelu_add" in made and b"matmul_kernel" in made
    assert library(module, tmp_path) == made


@needs_triton
def test_each_of_several_calls_has_its_numbers(tmp_path: Path) -> None:
    """Two sizes of one class share their code; a third, which 16 divides, has its own."""
    shapes = {"x": (100,), "y": (300,), "z": (320,)}
    module = graph(lambda *values: tuple(op.negative(each) for each in values), **shapes)
    made = library(module, tmp_path, plugin(tmp_path))
    assert len(cubins(made)) == 2
    assert len(set(re.findall(rb"triton_scaled_[0-9a-f]{16}", made))) == 2


def test_its_launches_are_in_the_cuda_graph() -> None:
    """Those between others: what reads an input or writes a result is launched beside it."""

    def layer(x: Any, number: int) -> Any:
        w, b = (weights(64, 64, seed=2 * number + at, dtype="float16") for at in range(2))
        return op.add(op.nn.gelu(op.matmul(x, w)), b)

    spec = resolve("cuda-sm90")
    module = graph(lambda x: layer(layer(layer(x, 0), 1), 2), x=("float16", (64, 64)))
    made = optimize(module, to_tvm(spec), CompileOptions(), plugins=[load_plugin(EXAMPLE)])
    ready, _ = finalize(schedule(made.module, spec).module, to_tvm(spec))
    captured = ready["main_cuda_graph_capture"].script()
    assert captured.count("gelu_add(") == captured.count("matmul(") == 2


@needs_triton
def test_what_triton_says_comes_out_of_the_build(tmp_path: Path) -> None:
    func = call(KERNELS.replace("x * scale", "x * scael")).prim_func([((1000,), "float16"), ((1000,), "float16")])
    with pytest.raises(PluginError, match=r"triton: mine\.scaled does not compile: kernels\.py:10: NameError"):
        build_kernel(func, resolve("cuda-sm90"), tmp_path / "kernel.so")


@needs_triton
@pytest.mark.parametrize("number", [float("-inf"), float("nan"), 1e39, -0.0, -(2**63)])
def test_any_number_is_passed(number: float, tmp_path: Path) -> None:
    """As that of a mask often is: a literal of TVM's script is finite, and 0 has no sign there."""
    values = (Argument(tensor=0), Argument(tensor=1), Argument(value=1000), Argument(value=1), Argument(value=number))
    func = call(arguments=values).prim_func([((1000,), "float16"), ((1000,), "float16")])
    build_kernel(func, resolve("cuda-sm90"), tmp_path / "kernel.so")


def onnx_model(folder: Path, *shape: int | str) -> Path:
    """`gelu(x) + b` in fp16."""
    nodes = [node("Gelu", ["x"], ["g"]), node("Add", ["g", "b"], ["y"])]
    x, b, y = (value(name, [*shape], TensorProto.FLOAT16) for name in ("x", "b", "y"))
    return write(folder, model(nodes, [x, b], [y], opset=20))


@needs_triton
@pytest.mark.slow
def test_a_compile_for_two_devices_in_its_sandbox(tmp_path: Path) -> None:
    """A changed kernel is another artifact, and an equal one the same; manifests name it, in each part."""
    names = (EXAMPLE.name, "gelu_add_triton.py")
    mine, kernels = (Path(shutil.copy(EXAMPLE.with_name(name), tmp_path)) for name in names)
    net = onnx_model(tmp_path, 33, 77)
    compiled = partial(relaxc.compile, net, target=BOTH, options=CompileOptions(plugins=(str(mine),)))
    made = compiled()
    rows = [row["kernel"] for part in made.manifest.parts for row in part.schedule]
    assert rows == ["triton: fused_gelu_add.gelu_add"] * 2 and made.manifest.versions["triton"]
    assert compiled().digest == made.digest
    kernels.write_text(kernels.read_text().replace("0.5 * x", "0.25 * x"))
    assert compiled().digest != made.digest


@needs_gpu
@needs_triton
@pytest.mark.parametrize("part", ["", "cuda-sm80"])
def test_it_is_right_on_a_gpu(part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In machine code for sm_90a, and by the PTX of sm_80."""
    import torch

    options = CompileOptions(plugins=(str(EXAMPLE),))
    made = relaxc.compile(onnx_model(tmp_path, 33, 77), target=BOTH, options=options, output=tmp_path / "m.so")
    assert made.manifest.verified is True
    monkeypatch.setenv("RELAXC_PART", part)
    settings.cache_clear()
    draw = np.random.default_rng(0)
    x, b = (draw.standard_normal((33, 77)).astype("float16") for _ in range(2))
    wanted = torch.nn.functional.gelu(torch.from_numpy(x).double()) + torch.from_numpy(b).double()
    np.testing.assert_allclose(load(tmp_path / "m.so")(x=x, b=b)["y"], wanted.numpy(), rtol=2e-3, atol=2e-3)
    monkeypatch.undo()
    settings.cache_clear()
