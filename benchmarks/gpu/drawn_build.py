"""Compile the models of `drawn`: libraries without weights, what is carried of those, and what a CPU computes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.gpu.drawn import KINDS
from relaxc.service.request import CompileOptions, Precision

__all__ = ["build_drawn", "computed_on_cpu"]

_CARRIED_BYTES = 1 << 16
"""Scales, zero points and biases: what is larger is drawn where it is timed."""
_FP16 = CompileOptions(precision=Precision.FP16)


def build_drawn(name: str, folder: Path) -> None:
    """Write the files of the model `name` into the folder."""
    with TemporaryDirectory() as scratch:
        _BUILDERS[name](Path(scratch), folder, name)


def _bert(scratch: Path, folder: Path, name: str, *, batch: int) -> None:
    import torch

    from benchmarks.gpu.models import model_of
    from benchmarks.gpu.quantized_child import quantize

    module, inputs = model_of("bert_unmasked", batch)
    with torch.no_grad():
        torch.export.save(torch.export.export(module, inputs, strict=False), scratch / "model.pt2")
    _compile(scratch / "model.pt2", CompileOptions(), folder / f"{name}.fp16", _CARRIED_BYTES)
    quantize(module, inputs, scratch / "model.onnx")
    _compile(scratch / "model.onnx", _FP16, folder / f"{name}.int8", _CARRIED_BYTES)


def _small_bert(scratch: Path, folder: Path, name: str, *, tokens: int) -> None:
    """Two layers of width 256: attention over keys of one step, or of more."""
    import torch

    from benchmarks.gpu.models import small_bert
    from benchmarks.gpu.quantized_child import quantize

    module = small_bert().eval()
    x = torch.randint(5, 900, (2, tokens), generator=torch.Generator().manual_seed(tokens))
    path = scratch / "model.onnx"
    quantize(module, (x,), path)
    with torch.no_grad():
        plain = module(x).numpy()
    given = {"input0": x.numpy()}
    np.savez_compressed(folder / f"{name}.reference.npz", x=x.numpy(), y=computed_on_cpu(path, given), plain=plain)
    _compile(path, _FP16, folder / f"{name}.int8")


def _e4m3(
    scratch: Path, folder: Path, name: str, *, sizes: tuple[int, ...], rows: int, by_column: bool, options: Any
) -> None:
    from benchmarks.gpu.e4m3 import write_layers

    path = write_layers(scratch / "model.onnx", sizes, rows, by_column=by_column)
    x = np.random.default_rng(5).standard_normal((rows, sizes[0])).astype(np.float32)
    np.savez_compressed(folder / f"{name}.reference.npz", x=x, y=computed_on_cpu(path, {"x": x}))
    _compile(path, options, folder / f"{name}.e4m3")


def _scaled(scratch: Path, folder: Path, name: str, *, by_row: bool) -> None:
    import torch

    from benchmarks.gpu.e4m3 import scaled_blocks

    module = scaled_blocks(512, by_row=by_row)
    x = torch.randn(128, 512, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        np.savez_compressed(folder / f"{name}.reference.npz", x=x.numpy(), y=module(x).numpy())
        torch.export.save(torch.export.export(module, (x,), strict=False), scratch / "model.pt2")
    _compile(scratch / "model.pt2", CompileOptions(), folder / f"{name}.e4m3")


_BUILDERS: dict[str, Callable[[Path, Path, str], None]] = {
    "bert_b32": partial(_bert, batch=32),
    "bert_b1": partial(_bert, batch=1),
    "small_bert_128": partial(_small_bert, tokens=128),
    "small_bert_200": partial(_small_bert, tokens=200),
    "e4m3_relu": partial(_e4m3, sizes=(768, 3072, 768), rows=128, by_column=False, options=CompileOptions()),
    "e4m3_columns": partial(
        _e4m3, sizes=(512, 2048, 512, 2048, 512), rows=200, by_column=True, options=CompileOptions()
    ),
    "e4m3_columns_fp16": partial(_e4m3, sizes=(512, 2048, 512, 2048, 512), rows=200, by_column=True, options=_FP16),
    "e4m3_scaled": partial(_scaled, by_row=False),
    "e4m3_scaled_rows": partial(_scaled, by_row=True),
}
assert set(_BUILDERS) == set(KINDS)


def computed_on_cpu(path: Path, given: dict[str, Any]) -> Any:
    """Return the first result of ONNX Runtime, without optimizations: they sum products of bytes otherwise."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, given)[0]


def _compile(path: Path, options: CompileOptions, stem: Path, carried_bytes: int | None = None) -> None:
    """Write the library, a list of its weights, and the values of those of up to `carried_bytes`; all without it."""
    from benchmarks.gpu.build_model import compile_to

    front, _ = compile_to(path, stem.with_name(f"{stem.name}.so"), options)
    arrays = [each.numpy() if hasattr(each, "numpy") else np.asarray(each) for each in front.optimized.weights.values()]
    carried = {
        f"w{number}": array.view(np.uint8) if array.dtype.kind == "V" else array
        for number, array in enumerate(arrays)
        if carried_bytes is None or array.nbytes <= carried_bytes
    }
    np.savez_compressed(stem.with_name(f"{stem.name}.npz"), **carried)
    weights = [[list(array.shape), str(array.dtype)] for array in arrays]
    rules = [[row["function"], row["rule"], row["parameters"]] for row in front.scheduled.report]
    stem.with_name(f"{stem.name}.json").write_text(json.dumps({"weights": weights, "rules": rules}))


if __name__ == "__main__":
    build_drawn(sys.argv[1], Path(sys.argv[2]))
