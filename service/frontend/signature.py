"""The signature of an imported module: what its function takes and gives, with bounds for the symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterable

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx import scope as onnx_scope
from relaxc.service.signature import DimBounds, Signature, TensorSpec

__all__ = ["signature_of"]


def signature_of(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec], scope: onnx_scope.Scope) -> Signature:
    """Return the signature of a module with these inputs and outputs, every name in them bounded.

    ONNX declares no bounds: a symbolic size is at least 1, one that the data decides at least 0. A table of
    512 positions that the graph takes the first `seq` of bounds `seq` from above; TopK of 3 bounds its axis from below.
    """
    inputs, results = tuple(inputs), tuple(outputs)
    names = dict.fromkeys(
        n for spec in (*inputs, *results) for dim in spec.shape for n in sorted(onnx_dims.names_in(dim))
    )
    bounds = tuple((name, _bounds(name, scope)) for name in names)
    return Signature(inputs, results, bounds, conditions=tuple(scope.conditions.values()))


def _bounds(name: str, scope: onnx_scope.Scope) -> DimBounds:
    least = 0 if name in scope.data_dependent else scope.lower.get(name, 1)
    return DimBounds(least, scope.upper.get(name))
