"""What a program computes: its outputs as a signature has them, and how large a tensor may be."""

from __future__ import annotations

import math
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import ModelTooLarge, UnsupportedModel
from relaxc.service.frontend.onnx.dims import dim_text, simplify
from relaxc.service.frontend.onnx.node import Node, dtype_of
from relaxc.service.frontend.onnx.scope import Scope
from relaxc.service.signature import TensorSpec

__all__ = ["check_size", "spec_of"]


def spec_of(name: str, output: Any, scope: Scope, codes: str | None = None) -> TensorSpec:
    """Return an output as a signature has it, with what its codes are of.

    Raise UnsupportedModel for a size that has no text there.
    """
    try:
        shape = tuple(dim_text(simplify(dim, scope)) for dim in output.ty.shape.values)
    except NotImplementedError as error:
        raise UnsupportedModel(f"output {name!r}: {error}") from error
    return TensorSpec(name, dtype_of(output), shape, codes)


def check_size(what: str, shape: list[Any], dtype: str) -> None:
    """Raise ModelTooLarge for a tensor that the memory of a compile, which runs the model too, cannot hold."""
    size = math.prod(dim for dim in shape if isinstance(dim, int)) * Node.numpy_dtype(dtype).itemsize
    limit = settings().compile_memory_bytes
    if size > limit:
        raise ModelTooLarge(
            f"{what} has the shape {[str(dim) for dim in shape]}, {size} bytes; RELAXC_COMPILE_MEMORY_BYTES is {limit}",
            size_bytes=size,
            limit_bytes=limit,
        )
