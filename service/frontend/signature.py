"""The signature of an imported module: what its function takes and gives, read off its types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from service.frontend import onnx_dims
from service.request import DimBounds, Signature, TensorSpec

__all__ = ["output_signature"]


def output_signature(
    module: Any, inputs: Iterable[TensorSpec], outputs: Sequence[str], scope: onnx_dims.Scope
) -> Signature:
    """The signature of `module["main"]`: the given inputs, and outputs with the shapes that the import found.

    ONNX declares no bounds: a symbolic size is at least 1, one that the data decides at least 0. A table of
    512 positions that the graph takes the first `seq` of bounds `seq` from above.
    """
    inputs = tuple(inputs)
    fields = module["main"].ret_ty.fields
    results = tuple(
        TensorSpec(name, str(field.dtype.dtype), tuple(onnx_dims.dim_text(d) for d in field.shape.values))
        for name, field in zip(outputs, fields, strict=True)
    )
    names = dict.fromkeys(
        n for spec in (*inputs, *results) for dim in spec.shape for n in sorted(onnx_dims.names_in(dim))
    )
    bounds = ((name, DimBounds(0 if name in scope.data_dependent else 1, scope.upper.get(name))) for name in names)
    return Signature(inputs, results, tuple(bounds))
