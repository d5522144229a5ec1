"""Artifacts for aarch64: cross-compiled here, run by the packaged runtime under qemu-user.

TVM's own libraries come from its wheels for aarch64, which `make build/aarch64` downloads; Debian has the rest.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxc
from benchmarks.peers.quantize import quantize
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import InvalidOption, MachineMismatch
from relaxc.service.packaging.package import make_package
from relaxc.service.request import CompileOptions, Precision
from relaxc.service.runtime import load
from tests import zoo
from tests.api.conftest import ROOT

pytestmark = pytest.mark.slow

WHEELS = ROOT / "build/aarch64"
SYSROOT = Path("/usr/aarch64-linux-gnu")
MODELS = ("mobilenet_v2", "bert", "mobilenet_v2-int8", "mobilenet_v2-full")
DOTS = {"aarch64": "fmla", "neoverse-n1": "sdot", "neoverse-v1": "usdot"}
"""The instruction that multiplies bytes on each target."""

CPUS = {"aarch64": "cortex-a53", "neoverse-n1": "neoverse-n1", "neoverse-v1": "max"}
"""The least CPU of qemu's that has what the target needs."""


@dataclass(frozen=True)
class Case:
    """A model with inputs, and what ONNX Runtime makes of them."""

    path: Path
    inputs: dict[str, Any]
    expected: list[Any]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with a small artifact for aarch64, whose program runs others too."""
    for program, debian in (("qemu-aarch64", "qemu-user"), ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: apt-get install {debian})")
    if not list(WHEELS.glob("*.whl")):
        pytest.skip("TVM's wheels for aarch64 are not here: `make build/aarch64` downloads them")
    folder = tmp_path_factory.mktemp("aarch64")
    made = relaxc.compile(zoo.export("mlp", "onnx"), target="aarch64", output=folder / "mlp.so")
    package = make_package(made.path, folder / "package", runtime=WHEELS)
    assert package.size_bytes < 12 << 20
    return package.folder


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """One of the models."""
    import onnxruntime

    family, _, variant = request.param.partition("-")
    path = zoo.export(family, "onnx", size="full" if variant == "full" else "small")
    rng = np.random.default_rng(0)
    inputs = {}
    for each in onnxruntime.InferenceSession(path).get_inputs():
        whole = "int" in each.type
        inputs[each.name] = rng.integers(0, 2, each.shape) if whole else rng.standard_normal(each.shape, np.float32)
    if variant == "int8":
        quantize(path, path := tmp_path_factory.mktemp("int8") / "model.onnx", inputs)
    return Case(path, inputs, onnxruntime.InferenceSession(path).run(None, inputs))


@pytest.mark.parametrize("target", DOTS)
def test_it_gives_the_references_numbers(package: Path, case: Case, target: str, tmp_path: Path) -> None:
    made = relaxc.compile(case.path, target=target, output=tmp_path / "model.so")
    manifest = Manifest.read(made.path)
    assert manifest.verified is None  # nothing here runs it
    outputs = ran(package, made.path, case.inputs, CPUS[target], tmp_path)
    for expected, got in zip(case.expected, outputs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    if case.path.name == "model.onnx":
        code = subprocess.run(
            ["aarch64-linux-gnu-objdump", "-d", made.path], capture_output=True, text=True, check=True
        )
        assert f"\t{DOTS[target]}\t" in code.stdout


def test_bfloat16_is_near(package: Path, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 2, (2, 12))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    found = {}
    for precision in (None, Precision.BF16):
        (folder := tmp_path / str(precision)).mkdir()
        options = CompileOptions(precision=precision)
        path = zoo.export("bert", "onnx")
        made = relaxc.compile(path, target="neoverse-v1", options=options, output=folder / "model.so")
        found[precision] = ran(package, made.path, inputs, "max", folder)
    for exact, got in zip(found[None], found[Precision.BF16], strict=True):
        assert 0 < np.abs(got - exact).max() < 0.05 * np.abs(exact).max()


def test_a_wrong_cpu_is_refused_by_name(package: Path, tmp_path: Path) -> None:
    made = relaxc.compile(zoo.export("mlp", "onnx"), target="neoverse-v1", output=tmp_path / "model.so")
    said = emulated(package, "neoverse-n1", made.path)
    assert said.returncode == 6
    assert "machine-mismatch" in said.stderr
    assert "CPU feature bf16, CPU feature fp16fml, CPU feature i8mm" in said.stderr
    assert "dotprod" not in said.stderr
    with pytest.raises(MachineMismatch, match="architecture aarch64"):
        load(made.path)
    here = relaxc.compile(zoo.export("mlp", "onnx"), target="x86-64-v2", output=tmp_path / "here.so")
    assert "architecture x86_64 (this one is aarch64)" in emulated(package, "max", here.path).stderr
    native = make_package(here.path, tmp_path / "native").folder
    done = subprocess.run([native / "bin/relaxc-run", made.path], capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert "architecture aarch64" in done.stderr
    with pytest.raises(InvalidOption, match="is for aarch64, the artifact is for x86_64"):
        make_package(here.path, tmp_path / "wrong", runtime=WHEELS)


def ran(package: Path, artifact: Path, inputs: dict[str, Any], cpu: str, folder: Path) -> list[Any]:
    """The outputs, in order."""
    words: list[object] = []
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
        words += ["--input", f"{name}={folder / name}.npy"]
    (out := folder / "out").mkdir()
    done = emulated(package, cpu, *words, "--outputs", out, artifact)
    assert done.returncode == 0, done.stderr
    return [np.load(out / f"{index}.npy") for index in range(len(list(out.iterdir())))]


def emulated(package: Path, cpu: str, *words: object) -> subprocess.CompletedProcess[str]:
    """How relaxc-run ended on that CPU."""
    command = ["qemu-aarch64", "-L", SYSROOT, "-cpu", cpu, package / "bin/relaxc-run", *words]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=600)
