"""Models quantized by ONNX Runtime: QDQ, uint8 activations of one scale, int8 weights with a scale a channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["quantize"]

_SAMPLES = 4
"""Of the inputs that scales are chosen by: those of the case, and others like them."""


def quantize(model: Path, out: Path, inputs: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write `model`, whose BatchNorms are folded first, quantized with the scales of runs on inputs like these."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    samples = _samples(inputs)

    class Samples(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
        def get_next(self) -> dict[str, Any] | None:
            return next(samples, None)

    folded = out.with_suffix(".folded.onnx")
    quant_pre_process(str(model), str(folded), skip_symbolic_shape=True)
    quantize_static(
        str(folded), str(out), Samples(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=True,
    )  # fmt: skip
    folded.unlink()


def _samples(inputs: Mapping[str, np.ndarray[Any, Any]]) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """The inputs, and their elements shuffled."""
    rng = np.random.default_rng(0)
    yield dict(inputs)
    for _ in range(_SAMPLES - 1):
        yield {name: rng.permutation(array.reshape(-1)).reshape(array.shape) for name, array in inputs.items()}
