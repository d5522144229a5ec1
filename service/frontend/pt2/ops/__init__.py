"""Converters of ATen operators to Relax, one family a file, found by name: `CONVERTERS["aten.add.Tensor"]`.

A converter takes an Emitter and the operator's arguments in the order of its schema, defaults filled in: tensors are
Relax expressions, sizes are ints or tirx expressions. It returns the result, or a tuple of results.
"""

from __future__ import annotations

from relaxc.service.frontend.pt2.ops import (  # noqa: F401  # each registers its converters
    activation,
    arithmetic,
    attention,
    convolution,
    create,
    float8,
    indexing,
    linear,
    logic,
    norms,
    pooling,
    quantize,
    recurrent,
    reduce,
    resize,
    shape,
    unary,
)
from relaxc.service.frontend.pt2.ops.registry import CONVERTERS, KEPT

__all__ = ["CONVERTERS", "KEPT"]
