"""Every family that the service must take, exported to ONNX, imported, and compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxc.service.frontend import load
from relaxc.service.request import ModelFormat
from tests import zoo
from tests.frontend.onnx.harness import check, compare

STATIC = ("swin", "distilbert", "lstm", "gru")
DYNAMIC = ("resnet18", "vit", "bert", "t5_encoder", "gpt2", "llama", "whisper_encoder")
LOW = (("bert", "bfloat16"), ("resnet18", "bfloat16"), ("lstm", "float16"))


@pytest.mark.sampled("lstm")
@pytest.mark.parametrize("name", STATIC)
def test_family(name: str) -> None:
    check(zoo.export(name, "onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("name", DYNAMIC)
def test_family_with_symbolic_sizes(name: str) -> None:
    """One import, two sets of sizes."""
    path = zoo.export(name, "onnx", dynamic=True)
    imported = load(path, ModelFormat.ONNX)
    names = [dim for dim, _ in imported.signature.dims]
    assert names
    compare(imported, path, dict(zip(names, (2, 5), strict=False)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), LOW)
def test_family_of_low_precision(name: str, dtype: str) -> None:
    imported = check(zoo.export(name, "onnx", dtype=dtype))
    assert dtype in {spec.dtype for spec in imported.signature.outputs}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin", "lstm"])
def test_export_by_tracing(name: str, tmp_path: Path) -> None:
    """TorchScript's exporter computes every shape in the graph, and knows sizes that the newer one does not."""
    import torch

    model = zoo.build(name)
    inputs = [*model.args, *model.kwargs.values()]
    axes = {f"in{place}": {0: "batch"} | ({1: "seq"} if name == "lstm" else {}) for place in range(len(inputs))}
    path = tmp_path / "traced.onnx"
    with torch.no_grad(), pytest.warns():
        torch.onnx.export(
            model.module, tuple(inputs), path, input_names=list(axes), dynamic_axes=axes, opset_version=17, dynamo=False
        )
    signature = check(path, sizes={"batch": 2, "seq": 6}).signature
    assert "batch" in signature.bounds


@pytest.mark.slow
@pytest.mark.parametrize("name", [*zoo.names(), *zoo.names(others=True)])
def test_every_family(name: str) -> None:
    check(zoo.export(name, "onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names(others=True))
def test_every_family_with_symbolic_sizes(name: str) -> None:
    try:
        path = zoo.export(name, "onnx", dynamic=True)
    except ValueError as error:
        pytest.skip(str(error))
    check(path)
