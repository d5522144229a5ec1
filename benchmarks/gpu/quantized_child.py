"""One process that quantizes a model with ONNX Runtime, and compiles it in int8 and in fp16."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["quantize"]


def main(folder: Path, name: str, batch: int) -> None:
    """Write MODEL_BATCH_int8.so, _fp16.so, and a report of both verifications into the folder."""
    import torch

    import relaxc
    from benchmarks.gpu.models import model_of
    from relaxc.service.request import CompileOptions, Precision

    module, inputs = model_of(name, batch)
    stem = f"{name}_{batch}"
    exported, quantized = folder / f"{stem}.pt2", folder / f"{stem}.onnx"
    with torch.no_grad():
        torch.export.save(torch.export.export(module, inputs, strict=False), exported)
    quantize(module, inputs, quantized)
    report: dict[str, Any] = {}
    wanted = (("int8", quantized, CompileOptions(precision=Precision.FP16)), ("fp16", exported, CompileOptions()))
    for kind, source, options in wanted:
        start = time.monotonic()
        done = relaxc.compile(source, target="cuda", output=folder / f"{stem}_{kind}.so", options=options)
        (first, *_) = done.manifest.verification["outputs"]
        kept = {key: first.get(key) for key in ("scaled_error", "tolerance", "cosine", "moved")}
        report[kind] = {"verified": done.manifest.verified, "seconds": round(time.monotonic() - start, 1), **kept}
    (folder / f"{stem}.json").write_text(json.dumps(report))


def quantize(module: Any, inputs: tuple[Any, ...], out: Path) -> None:
    """Write `module`, which becomes fp32, as a QDQ model, calibrated on `inputs`."""
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    module, inputs = module.float(), tuple(x.float() if x.is_floating_point() else x for x in inputs)
    plain = out.with_suffix(".fp32.onnx")
    names = [f"input{index}" for index in range(len(inputs))]
    torch.onnx.export(module, inputs, str(plain), dynamo=False, opset_version=17, input_names=names)
    samples = iter([dict(zip(names, (x.numpy() for x in inputs), strict=True))] * 2)

    class Samples(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
        def get_next(self) -> dict[str, Any] | None:
            return next(samples, None)

    quantize_static(
        str(plain), str(out), Samples(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul", "Gemm", "Conv"],
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
