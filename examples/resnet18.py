"""Writes a ResNet-18 with seeded random weights: `python -m examples.resnet18 DIR` for DIR/resnet18.onnx and .pt2."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.zoo import export_onnx, export_pt2

__all__ = ["write"]


def write(folder: Path) -> tuple[Path, Path]:
    """The two files of image float32[1, 3, 224, 224] → logits float32[1, 1000]; about 45 MB each."""
    return (
        export_onnx("resnet18", folder / "resnet18.onnx", size="full"),
        export_pt2("resnet18", folder / "resnet18.pt2", size="full"),
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
