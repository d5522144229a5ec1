"""The build: a library that runs, the same bytes twice, other targets, dumps, and tools that are missing or fail."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from relaxc.service import config
from relaxc.service.config import Settings
from relaxc.service.errors import CompileFailed, ToolMissing
from relaxc.service.lowering import build, schedule, tools
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.harness import legalized

R = relax.op
T = relax.transform


def ready(target: str, m: int = 30):
    """A linear layer with GELU, scheduled and ready for the VM."""
    spec = resolve(target)
    module = legalized(lambda x, w, b: R.nn.gelu(R.add(R.matmul(x, w), b)), [(m, 40), (40, 64), (64,)], ["float32"] * 3)
    return lowered(module, spec), spec


def lowered(module, spec):
    """The legalized module, scheduled and ready for the VM."""
    module = schedule(module, spec).module
    passes = [
        T.ToNonDataflow(), T.RemovePurityChecking(), T.CallTIRRewrite(), T.StaticPlanBlockMemory(),
        T.LowerAllocTensor(), T.KillAfterLastUse(), T.LowerRuntimeBuiltin(), T.ComputePrimValue(),
        T.VMShapeLower(), T.AttachGlobalSymbol(),
    ]  # fmt: skip
    with to_tvm(spec):
        return tvm.ir.transform.Sequential(passes)(module)


class Dumps(dict):
    """A dump that keeps everything."""

    def __call__(self, name, text, suffix="py"):
        self[f"{name}.{suffix}"] = text()


def test_the_library_runs(tmp_path):
    module, spec = ready("auto")
    build(module, spec, tmp_path / "model.so")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.so"]
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "model.so")), tvm.cpu())
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in ((30, 40), (40, 64), (64,))]
    got = machine["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()
    import torch

    x, w, b = map(torch.from_numpy, arrays)
    np.testing.assert_allclose(got, torch.nn.functional.gelu(x @ w + b).numpy(), rtol=1e-5, atol=1e-5)


SCRIPT = """
import hashlib, sys
from pathlib import Path
from tests.lowering.test_build import ready
from relaxc.service.lowering import build
build(*ready("x86-64-v3"), Path(sys.argv[1]))
print(hashlib.sha256(Path(sys.argv[1]).read_bytes()).hexdigest())
"""


@pytest.mark.slow
def test_equal_bytes_in_another_process_and_folder(tmp_path):
    build(*ready("x86-64-v3"), tmp_path / "model.so")
    here = hashlib.sha256((tmp_path / "model.so").read_bytes()).hexdigest()
    other = tmp_path / "other folder" / "x"
    other.mkdir(parents=True)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(other / "another name.so")], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert ran.stdout.strip().splitlines()[-1] == here
    assert str(tmp_path).encode() not in (tmp_path / "model.so").read_bytes()


@pytest.mark.usefixtures("code_to_be_read")
def test_512_bit_vectors_are_used(tmp_path):
    dumps = Dumps()
    build(*ready("x86-64-v4"), tmp_path / "model.so", dump=dumps)
    assert "vfmadd231ps" in dumps["assembly.s"] and "zmm" in dumps["assembly.s"]
    assert "erff" not in dumps["assembly.s"]
    assert "x86_64" in dumps["llvm_ir.ll"]


@pytest.mark.parametrize(
    ("target", "there", "absent"), [("x86-64-v2", "xmm", "ymm"), ("x86-64-v3", "ymm", "zmm"), ("znver4", "zmm", "nope")]
)
@pytest.mark.usefixtures("code_to_be_read")
def test_cross_compiles_to_other_levels(target, there, absent, tmp_path):
    dumps = Dumps()
    build(*ready(target), tmp_path / "model.so", dump=dumps)
    assert there in dumps["assembly.s"] and absent not in dumps["assembly.s"]


def test_aarch64_is_neon_and_names_the_missing_linker(tmp_path):
    dumps = Dumps()
    module, spec = ready("aarch64")
    if shutil.which("aarch64-linux-gnu-g++"):
        build(module, spec, tmp_path / "model.so", dump=dumps)
    else:
        with pytest.raises(ToolMissing, match=r"aarch64-linux-gnu-g\+\+") as caught:
            build(module, spec, tmp_path / "model.so", dump=dumps)
        assert "g++-aarch64-linux-gnu" in caught.value.remedy
    assert "fmla\tv" in dumps["assembly.s"]


@pytest.mark.sampled("cuda-sm90")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("target", ["cuda-sm80", "cuda-sm90"])
def test_cuda_without_a_gpu(target, tmp_path):
    dumps = Dumps()
    build(*ready(target), tmp_path / "model.so", dump=dumps)
    assert "__global__" in dumps["cuda.cu"] and "fast_math" not in dumps["cuda.cu"]
    binary = (tmp_path / "model.so").read_bytes()
    assert b"\x7fELF" in binary[4:]  # the cubin
    build(*ready(target), tmp_path / "again.so")
    assert (tmp_path / "again.so").read_bytes() == binary


def settings_with(monkeypatch, **values):
    monkeypatch.setattr(tools, "settings", lambda: Settings(**values))
    monkeypatch.setattr(config, "settings", lambda: Settings(**values))


def test_a_missing_linker_is_named(monkeypatch, tmp_path):
    settings_with(monkeypatch, cxx="no-such-g++")
    with pytest.raises(ToolMissing, match=r"no-such-g\+\+ is not installed"):
        build(*ready("auto"), tmp_path / "model.so")


def test_a_tool_that_fails_gives_the_command_that_repeats_it(monkeypatch, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho cannot find -lm >&2\nexit 3\n")
    broken.chmod(0o755)
    settings_with(monkeypatch, cxx=str(broken))
    with pytest.raises(CompileFailed, match="status 3: cannot find -lm") as caught:
        build(*ready("auto"), tmp_path / "model.so")
    command = caught.value.fields["command"]
    assert command in caught.value.remedy
    again = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert again.returncode == 3 and "cannot find -lm" in again.stderr  # its inputs are still there


def test_a_library_needs_the_c_library_alone(tmp_path):
    build(*ready("auto"), tmp_path / "model.so")
    assert ctypes.CDLL(str(tmp_path / "model.so"))
