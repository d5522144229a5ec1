"""The whole pipeline on whole models: the numbers stay, the kernels are few, the report says which."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from docs.generate import PAGES
from relaxc.service import frontend
from relaxc.service.dump import DumpFolder
from relaxc.service.passes import Optimized, optimize
from relaxc.service.passes.phase import PHASES
from relaxc.service.passes.pipeline import Job, lowering_passes, phases
from relaxc.service.request import CompileOptions, Precision
from relaxc.service.signature import Signature
from tests import zoo
from tests.passes.graphs import TARGET, graph, run, weights

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host=TARGET)


def imported(name: str, format: str, **export: Any) -> tuple[Any, Path]:
    path = zoo.export(name, format, **export)
    return frontend.load(path, frontend.identify(path), shapes={}), path


def feeds(signature: Signature, size: int = 3) -> dict[str, Any]:
    """Random inputs, every symbolic size a small number of its own within its bounds."""
    rng, sizes = np.random.default_rng(0), {}
    for offset, (name, bound) in enumerate(signature.dims):
        sizes[name] = min(max(bound.minimum, size + 2 * offset), bound.maximum or 1 << 30)

    def array(spec: Any) -> Any:
        shape = [dim if isinstance(dim, int) else sizes[dim] for dim in spec.shape]
        if "int" in spec.dtype:
            return (np.ones(shape) if "mask" in spec.name else rng.integers(0, 50, shape)).astype(spec.dtype)
        return rng.standard_normal(shape).astype(spec.dtype)

    return {spec.name: array(spec) for spec in signature.inputs}


def assert_right(model: Any, path: Path, optimized: Optimized, tolerance: float) -> None:
    inputs = feeds(model.signature)
    want = frontend.reference(path, frontend.identify(path), threads=1, shapes={})(inputs)
    got = run(optimized, *(inputs[spec.name] for spec in model.signature.inputs))
    for spec, array in zip(model.signature.outputs, got, strict=True):
        reference = np.asarray(want[spec.name]).astype("float64")
        scale = np.abs(reference).max()
        np.testing.assert_allclose(array.astype("float64"), reference, atol=tolerance * scale, rtol=tolerance)


def contractions(report: dict[str, int]) -> int:
    return sum(count for name, count in report.items() if re.match(r"matmul|conv2d|depthwise", name))


# model → what it exports to, the kernels at -O1, how many of them multiply matrices
MODELS = {
    "resnet18": ({"format": "onnx"}, 23, 21),
    "mobilenet_v2": ({"format": "onnx", "dynamic": True}, 39, 38),
    "bert": ({"format": "pt2"}, 41, 17),
    "llama": ({"format": "pt2", "dynamic": True}, 60, 19),
    "convnext": ({"format": "onnx"}, 46, 20),
    "gru": ({"format": "onnx"}, 40, 22),
}


FAST = ("resnet18", "bert", "gru")


@pytest.mark.sampled("resnet18")
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_models(name: str) -> None:
    export, kernels, multiplying = MODELS[name]
    model, path = imported(name, **export)
    optimized = optimize(model.module, TARGET, CompileOptions(opt_level=1))
    assert optimized.report.kernel_calls <= kernels
    assert contractions(optimized.report.fusions) <= multiplying
    assert_right(model, path, optimized, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "level"), [("resnet18", 0), ("resnet18", 2), ("bert", 3)])
def test_levels(name: str, level: int) -> None:
    model, path = imported(name, "onnx")
    optimized = optimize(model.module, TARGET, CompileOptions(opt_level=level))
    assert_right(model, path, optimized, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "precision"),
    [
        ("resnet18", "float32", Precision.FP16),
        ("bert", "bfloat16", None),
        ("gpt2", "float16", Precision.FP32),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("bert", "float32", Precision.BF16), ("gpt2", "float16", None), ("vit", "bfloat16", None))
        ),
    ],
)
def test_mixed_precision(name: str, dtype: str, precision: Precision | None) -> None:
    model, path = imported(name, "pt2", dtype=dtype)
    optimized = optimize(model.module, TARGET, CompileOptions(opt_level=1, precision=precision))
    low = "bfloat16" in (dtype, precision and precision.dtype)
    assert_right(model, path, optimized, 3e-2 if low else 6e-3)


def test_batch_norms_and_residuals_of_a_resnet_are_in_its_convolutions() -> None:
    model, _ = imported("resnet18", "onnx")
    fusions = optimize(model.module, TARGET, CompileOptions(opt_level=1)).report.fusions
    assert fusions["conv2d + bias + residual + relu"] == 8
    assert fusions["conv2d + bias + relu"] == 9
    assert fusions["conv2d + bias"] == 3
    assert not any("batch_norm" in name or name.startswith(("add", "relu")) for name in fusions)


def test_a_report_is_json() -> None:
    report = optimize(graph(lambda x: x, x=(2, 3)), TARGET, CompileOptions()).report
    assert {"fusions", "kernel_calls", "layout", "precision", "weights", "weight_bytes"} <= report.to_dict().keys()


def test_the_same_model_gives_the_same_module() -> None:
    one, other = (optimize(imported("mlp", "onnx")[0].module, TARGET, CompileOptions()) for _ in range(2))
    tvm.ir.assert_structural_equal(one.module, other.module)
    assert list(one.weights) == list(other.weights)


def test_dumps_and_progress_follow_the_phases(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    module = graph(lambda x: tvm.relax.op.matmul(x, weights(4, 4)), x=(2, 4))
    optimize(
        module,
        TARGET,
        CompileOptions(),
        dump=DumpFolder(tmp_path),
        progress=lambda done, total: seen.append((done, total)),
    )
    run_phases = [phase.name for phase in phases(TARGET, Job())]
    names = [re.sub(r"^\d+_", "", path.stem) for path in sorted(tmp_path.iterdir())]
    assert names == [f"relax_after_{name}" for name in run_phases]
    assert seen == [(done, len(run_phases)) for done in range(len(run_phases) + 1)]


def every_pass() -> set[str]:
    job = Job(opt_level=3, precision=Precision.BF16, low_dtypes=frozenset({"float16"}))
    lists = [phase.passes for target in (TARGET, CUDA) for phase in phases(target, job)]
    return {str(each.info.name) for passes in lists for each in passes}


def test_every_pass_is_documented() -> None:
    page = next(build() for path, build in PAGES.items() if path.name == "pipeline.md")
    assert [name for name in sorted(every_pass()) if f"`{name}`" not in page and f"*{name}*" not in page] == []


def test_each_target_has_the_same_phases_in_order() -> None:
    for target in (TARGET, CUDA):
        assert tuple(phase.name for phase in phases(target, Job(opt_level=3))) == PHASES
    assert "RewriteCUDAGraph" in {str(each.info.name) for each in lowering_passes(CUDA)}
    assert "RewriteCUDAGraph" not in {str(each.info.name) for each in lowering_passes(TARGET)}


def test_a_level_leaves_out_the_phases_above_it() -> None:
    names = {level: {phase.name for phase in phases(TARGET, Job(opt_level=level))} for level in range(4)}
    assert names[1] - names[0] == {"simplify", "fuse"}
    assert names[2] - names[1] == {"layout"}
    assert names[3] - names[2] == {"fast_math"}
