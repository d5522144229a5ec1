"""An ONNX model for ONNX Runtime without its data, which that maps from the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaxc.service.frontend.onnx.file import mapped, tensors

__all__ = ["light"]


def light(path: Path) -> Any:
    """Return the model at `path` with the large data of its initializers as external data, which the file itself is."""
    model, outside = mapped(path)
    for tensor in model.graph.initializer:
        outside.name_file(tensor, path.name)
    for tensor in tensors(model):
        outside.put_back(tensor)
    return model
