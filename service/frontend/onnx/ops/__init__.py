"""Converters of ONNX operators to Relax, one family a file; the rest may go to TVM's own importer."""

from __future__ import annotations

import functools
import importlib

from relaxc.service.frontend.onnx.node import Converter
from relaxc.service.frontend.onnx.ops.registry import CONVERTERS

__all__ = ["converter_of"]

FAMILIES = (
    "activation",
    "conv",
    "elementwise",
    "grouped",
    "indexing",
    "matmul",
    "matmul_nbits",
    "microsoft",
    "microsoft_fused",
    "normalization",
    "patches",
    "pool",
    "quantize",
    "quantize_microsoft",
    "recurrent",
    "recurrent_codes",
    "reduce",
    "resize",
    "sequence",
    "shape",
    "shape_make",
    "sort",
    "spectral",
    "suppression",
    "tables",
    "trees",
    "upstream",
)


def converter_of(name: str) -> Converter | None:
    """Return the converter of an operator (`Conv`, `com.microsoft::FastGelu`); None if there is none."""
    _import_families()
    return CONVERTERS.get(name)


@functools.cache
def _import_families() -> None:
    for family in FAMILIES:
        importlib.import_module(f"relaxc.service.frontend.onnx.ops.{family}")
