"""In what each kernel of an artifact computes, and why: rows of its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from relaxc.service.request import CompileOptions, Precision

__all__ = ["CALIBRATED", "QUANTIZED", "precisions"]

QUANTIZED = "the model quantizes what it multiplies"
CALIBRATED = "--precision int8: quantized by calibration"

_CONTRACTIONS = ("matmul", "conv", "attention", "dense")
_LOW = ("float16", "bfloat16")
_BYTES = ("int8", "uint8")


def precisions(
    schedule: Iterable[Mapping[str, Any]], options: CompileOptions, *, calibrated: bool = False
) -> dict[str, dict[str, str]]:
    """Return, by the name of each PrimFunc of a schedule report, the dtypes that it reads and sums in (`dtype`), and
    `why` these.
    """
    return {
        row["function"]: {"dtype": row["dtype"], "why": _why(row, options, calibrated)}
        for row in schedule
        if isinstance(row.get("dtype"), str)
    }


def _why(row: Mapping[str, Any], options: CompileOptions, calibrated: bool) -> str:
    parts = row["dtype"].split("+")
    contracts = any(word in row["function"] for word in _CONTRACTIONS)
    low = {"fp16": "float16", "bf16": "bfloat16"}.get(options.precision or "")
    if "blocks" in str(row.get("rule")):
        return f"--weights {options.weights}" if options.weights else "the model's weights are codes"
    if contracts and any(part in _BYTES for part in parts):
        return CALIBRATED if calibrated else QUANTIZED
    # Attention on float32 may store 16 bits; operands are named first
    if low is not None and low in (parts[:1] if "attention" in row["function"] else parts):
        return f"--precision {options.precision}: {'operands' if contracts else 'stored for, or by, a product'}"
    if low is not None and contracts:
        return "a product of two computed values, or one that gains nothing in 16 bits here: float32 keeps its digits"
    if any(part in _LOW for part in parts):
        return "as the model; arithmetic between products in float32"
    if any(part in _BYTES for part in parts):
        return "moves or makes codes"
    if options.precision in (Precision.FP32, Precision.TF32) and contracts:
        return f"--precision {options.precision}"
    return "as the model"
