"""Whole compiles through the public call: real models, children, store and reference, nothing in between replaced."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import relaxc
from relaxc.service import compiler, config, frontend
from relaxc.service.artifact.manifest import code_extent
from relaxc.service.compiling import verifier
from relaxc.service.compiling.stages import Front
from relaxc.service.errors import InvalidRecords, NotTuned, VerificationFailed
from relaxc.service.frontend import Move
from relaxc.service.jobs.local import calls as local
from relaxc.service.records.files import append
from relaxc.service.request import CompileOptions, Precision
from relaxc.service.runtime.inputs import random_inputs
from tests import zoo
from tests.frontend.onnx.harness import model, node, value, write
from tests.records.samples import record_of_row

FAST = [("cnn", "onnx"), ("resnet18", "onnx"), ("bert", "onnx"), ("bert", "pt2"), ("llama", "pt2"), ("lstm", "pt2")]


@pytest.fixture(scope="module", autouse=True)
def own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store of this module's own: no artifact of another day answers for the compiler of today."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAXC_CACHE_DIR", str(tmp_path_factory.mktemp("store")))
        config.settings.cache_clear()
        local._backend_of.cache_clear()
        yield
    config.settings.cache_clear()
    local._backend_of.cache_clear()


@pytest.mark.sampled("cnn-onnx")
@pytest.mark.parametrize(("family", "format"), FAST)
def test_a_model_becomes_a_verified_artifact(family: str, format: str) -> None:
    made = relaxc.compile(zoo.export(family, format))
    assert made.manifest.verified is True, made.manifest.verification
    assert not any(row["rule"] is None for row in made.manifest.schedule)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_16_bit_program_is_verified_in_its_own_dtype(dtype: str) -> None:
    made = relaxc.compile(zoo.export("bert", "pt2", dtype=dtype))
    assert made.manifest.verified is True, made.manifest.verification
    assert {spec.dtype for spec in made.manifest.signature.outputs} == {dtype}


@pytest.mark.parametrize("precision", [relaxc.Precision.FP16, relaxc.Precision.BF16])
def test_mixed_precision_keeps_the_boundary(precision: relaxc.Precision) -> None:
    made = relaxc.compile(zoo.export("cnn", "onnx"), options=relaxc.CompileOptions(precision=precision))
    assert made.manifest.verified is True, made.manifest.verification
    assert {spec.dtype for spec in made.manifest.signature.outputs} == {"float32"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_one_artifact_for_several_gpus_has_each_weight_once(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    weights = {"w": draw.standard_normal((64, 96)).astype("float16"), "b": draw.standard_normal(96).astype("float16")}
    nodes = [node("Gemm", ["x", "w", "b"], ["sum"]), node("Relu", ["sum"], ["y"])]
    low = TensorProto.FLOAT16
    net = write(tmp_path, model(nodes, [value("x", [32, 64], low)], [value("y", [32, 96], low)], **weights))
    made = relaxc.compile(net, target="cuda-sm90,cuda-sm80")
    assert made.manifest.target_names == "cuda-sm80,cuda-sm90"
    older, newer = made.manifest.parts
    assert {tensor.name for tensor in newer.weights.tensors} <= {tensor.name for tensor in older.weights.tensors}
    assert "cuda.gemm_sm90" in {row["rule"] for row in newer.schedule} - {row["rule"] for row in older.schedule}
    assert relaxc.compile(net, target="cuda-sm80,cuda-sm90").digest == made.digest
    extent = code_extent(made.path, made.manifest, 1)
    assert extent is not None and made.path.read_bytes()[extent[0] :].startswith(b"\x7fELF")


def test_one_artifact_for_several_cpus_has_what_they_share_once(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    table, w = draw.standard_normal((5000, 64)).astype("float32"), draw.standard_normal((64, 96)).astype("float32")
    nodes = [node("Gather", ["table", "x"], ["rows"]), node("MatMul", ["rows", "w"], ["y"])]
    net = write(tmp_path, model(nodes, [value("x", [8], TensorProto.INT64)], [value("y", [8, 96])], table=table, w=w))
    made = relaxc.compile(net, target="x86-64-v4,x86-64-v3")
    older, newer = made.manifest.parts
    assert [each.target.name for each in (older, newer)] == ["x86-64-v3", "x86-64-v4"]
    assert isinstance(older.verification, dict)
    assert older.verification["passed"]
    assert made.path.stat().st_size < 1.3 * table.nbytes
    x = np.arange(0, 400, 50)
    np.testing.assert_allclose(relaxc.load(made.path)(x=x)["y"], table[x] @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format", ["onnx", pytest.param("pt2", marks=pytest.mark.slow)])
def test_one_artifact_takes_several_batches_and_lengths(format: str) -> None:
    path = zoo.export("bert", format, dynamic=True)
    made = relaxc.compile(path)
    assert made.manifest.verified is True, made.manifest.verification
    session = relaxc.load(made.path)
    reference = frontend.reference(path, frontend.identify(path))
    names = [name for spec in session.signature.inputs for name in spec.shape if isinstance(name, str)]
    batch, length = dict.fromkeys(names)
    for sizes in ({batch: 2, length: 5}, {batch: 3, length: 16}, {batch: 2, length: 7}):
        inputs = random_inputs(session.signature, sizes=sizes)
        wanted = reference(inputs)
        for name, array in session(inputs).items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_size_outside_the_bounds_is_refused_by_name() -> None:
    made = relaxc.compile(zoo.export("bert", "pt2", dynamic=True))
    session = relaxc.load(made.path)
    name, bounds = next((n, b) for n, b in session.signature.dims if b.maximum is not None)
    shape = {n: (bounds.maximum or 0) + 1 if n == name else b.minimum for n, b in session.signature.dims}
    inputs = {
        spec.name: np.zeros([shape.get(d, d) if isinstance(d, str) else d for d in spec.shape], spec.dtype)
        for spec in session.signature.inputs
    }
    with pytest.raises(relaxc.errors.InputShape, match=name):
        session(inputs)


def test_equal_requests_give_equal_bytes(tmp_path: Path) -> None:
    request = local.prepare(zoo.export("cnn", "onnx"))
    first = local.compile_local(request, force=True).copy_to(tmp_path / "a.so").path.read_bytes()
    second = local.compile_local(request, force=True).copy_to(tmp_path / "b.so").path.read_bytes()
    assert first == second
    assert local.compile_local(request).cached


@pytest.mark.slow
def test_an_artifact_for_a_machine_that_is_not_here_is_not_verified_and_says_so() -> None:
    made = relaxc.compile(zoo.export("cnn", "onnx"), target="aarch64") if _can_link_aarch64() else None
    cuda = relaxc.compile(zoo.export("cnn", "onnx"), target="cuda-sm90") if _has_nvcc() else None
    for artifact in filter(None, (made, cuda)):
        assert artifact.manifest.verified is None
        assert str(artifact.manifest.verification).startswith("not verified: this machine cannot run it")


def test_a_convolution_whose_sum_is_one_step_has_no_loop_to_prefetch_in(tmp_path: Path) -> None:
    """Four input channels in one vector of NEON's: it was marked for a prefetch that there was no place for."""
    if not _can_link_aarch64():
        pytest.skip("aarch64-linux-gnu-g++ is not installed (Debian: apt-get install g++-aarch64-linux-gnu)")
    shapes = {"a": (4, 24, 1, 1), "b": (24, 4, 1, 1)}
    held = {name: np.random.default_rng(0).standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    nodes = [node("Conv", ["x", "a"], ["y"]), node("Relu", ["y"], ["r"]), node("Conv", ["r", "b"], ["z"])]
    image = [1, 24, 32, 32]
    path = write(tmp_path, model(nodes, [value("x", image)], [value("z", image)], **held))
    relaxc.compile(path, target="aarch64")


def _can_link_aarch64() -> bool:
    return shutil.which("aarch64-linux-gnu-g++") is not None


def _has_nvcc() -> bool:
    return shutil.which("nvcc") is not None


def test_a_symbolic_model_is_right_with_the_records_of_its_kernels(tmp_path: Path) -> None:
    """The same records serve every size, and a compile is as right with them as without."""
    path = zoo.export("mlp", "onnx", dynamic=True)
    untuned = relaxc.compile(path, options=relaxc.CompileOptions(default_records=False)).manifest
    made = [
        record_of_row({**row, "parameters": {**row["parameters"], "rows": 1}}, untuned.target)
        for row in untuned.schedule
        if "rows" in row["parameters"]
    ]
    append(tmp_path, made)
    options = relaxc.CompileOptions(records=(str(tmp_path),), default_records=False, require_tuned="all")
    tuned = relaxc.compile(path, options=options).manifest
    behind = {row["record"]["digest"] for row in tuned.schedule if row["source"] == "record"}
    assert made and behind == {one.digest for one in made}
    assert tuned.verified is True, tuned.verification
    assert tuned.digests["tuning"] != untuned.digests["tuning"]
    with pytest.raises(NotTuned, match="have no tuning record") as missing:
        relaxc.compile(path, options=replace(options, records=()))
    assert "sizes that are known at run time only: fix them with `--shape`" in missing.value.remedy


def test_records_that_changed_while_a_compile_waited_are_not_used(tmp_path: Path) -> None:
    """The artifact would be kept under the key of the records that were there before."""
    request = compiler.prepare(zoo.export("mlp", "onnx"))
    with pytest.raises(InvalidRecords, match="changed while the compile waited"):
        compiler.run(request, tmp_path, lambda event: None, records="0" * 64)


def test_what_a_compile_was_made_of_is_gone_before_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference of a large model has the memory of its modules."""
    seen: list[Any] = []

    def verify(*_: Any) -> str:
        seen.extend(each for each in gc.get_objects() if type(each) is Front)
        return "not today"

    monkeypatch.setattr(compiler, "verify", verify)
    request = compiler.prepare(zoo.export("mlp", "onnx"), target="x86-64-v3")
    compiler.run(request, tmp_path, lambda event: None)
    assert seen == []


@pytest.mark.parametrize(("moved_by", "passes"), [(1e-5, True), (0.02, False)], ids=["rounding", "another scale"])
def test_a_quantized_model_may_be_off_by_what_its_reference_moves(tmp_path, moved_by: float, passes: bool) -> None:
    """What another right compiler would give is not refused: values on rounding boundaries fall elsewhere."""
    weights: dict[str, Any] = {"s": np.float32(0.02), "t": np.float32(0.002), "z": np.uint8(128)}
    nodes, name = [], "x"
    for layer in range(3):
        weights[f"w{layer}"] = np.random.default_rng(layer).integers(0, 256, (64, 64)).astype("uint8")
        nodes.append(node("QuantizeLinear", [name, "s", "z"], [f"q{layer}"]))
        nodes.append(node("DequantizeLinear", [f"q{layer}", "s", "z"], [f"d{layer}"]))
        nodes.append(node("DequantizeLinear", [f"w{layer}", "t", "z"], [f"v{layer}"]))
        nodes.append(node("MatMul", [f"d{layer}", f"v{layer}"], [name := f"y{layer}"]))
    path = write(tmp_path, model(nodes, [value("x", [64, 64])], [value(name, [64, 64])], **weights))
    request = compiler.prepare(path)
    other = frontend.moved_reference(path, request.model.format, Move.QUANTIZATIONS, seed=99, by=moved_by)
    signature = frontend.inspect(path, request.model.format).signature

    class Session:
        manifest = SimpleNamespace(weights=SimpleNamespace(tensors=()), passes={})
        __call__ = staticmethod(other)

    if passes:
        found = verifier.verify(request, signature, Session, lambda *_: None)
        assert found.passed and found.outputs[0].moved
    else:
        with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
            verifier.verify(request, signature, Session, lambda *_: None)


@pytest.mark.parametrize(("by", "passes"), [(2.0**-11, True), (0.05, False)], ids=["rounding", "another weight"])
def test_a_model_in_16_bits_may_be_off_by_what_rounding_its_weights_moves(tmp_path, by: float, passes: bool) -> None:
    """The difference of two products that are nearly equal: what is rounded is a hundred times what is left."""
    draw = np.random.default_rng(0)
    a = draw.standard_normal((64, 64)).astype("float32")
    b = (a * (1 + 0.01 * draw.standard_normal((64, 64)))).astype("float32")
    nodes = [node("MatMul", ["x", "a"], ["p"]), node("MatMul", ["x", "b"], ["q"]), node("Sub", ["p", "q"], ["y"])]
    path = write(tmp_path, model(nodes, [value("x", [64, 64])], [value("y", [64, 64])], a=a, b=b))
    request = compiler.prepare(path, options=CompileOptions(precision=Precision.FP16))
    signature = frontend.inspect(path, request.model.format).signature

    class Session:
        manifest = SimpleNamespace(weights=SimpleNamespace(tensors=()), passes={})
        __call__ = staticmethod(frontend.moved_reference(path, request.model.format, Move.WEIGHTS, seed=99, by=by))

    if passes:
        found = verifier.verify(request, signature, Session, lambda *_: None)
        assert found.passed and found.outputs[0].moved and found.outputs[0].scaled_error > 0.02
    else:
        with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
            verifier.verify(request, signature, Session, lambda *_: None)
    exact = compiler.prepare(path)
    with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
        verifier.verify(exact, signature, Session, lambda *_: None)
