"""How far models of the zoo at full size are from themselves in floats when they are calibrated to int8.

python -m benchmarks.accuracy resnet50 bert
python -m benchmarks.accuracy bert --max-error 0.03 --samples 8
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cases import parse
from benchmarks.peers.files import build, named_tensors
from relaxc.service import frontend
from relaxc.service.request import Calibration, ModelFormat
from tests import zoo

__all__ = ["samples"]


def samples(name: str, count: int) -> tuple[zoo.ZooModel, dict[str, np.ndarray[Any, Any]]]:
    """Return the model, and inputs like its own: normal images, and tokens of its own in other orders."""
    model = build(parse(name))
    own = {key: value.numpy() for key, value in named_tensors(model).items()}
    rng = np.random.default_rng(0)

    def drawn(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if value.dtype.kind == "f":
            return rng.standard_normal(value.shape, dtype=np.float32)
        return rng.permuted(value, axis=-1)

    return model, {key: np.stack([drawn(value) for _ in range(count)]) for key, value in own.items()}


def main() -> None:
    """Print a JSON line for each model, with its outputs and its worst layers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--max-error", type=float)
    args = parser.parse_args()
    for name in args.models:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(_row(name, args.samples, args.max_error, Path(place))), flush=True)


def _row(name: str, count: int, max_error: float | None, folder: Path) -> dict[str, Any]:
    model, given = samples(name, count)
    zoo.write_onnx(model, folder / "model.onnx")
    np.savez(folder / "samples.npz", **given)  # type: ignore[arg-type]  # its **kwds are arrays
    start = time.process_time()
    found = frontend.calibrate(
        folder / "model.onnx",
        ModelFormat.ONNX,
        folder / "samples.npz",
        Calibration("samples.npz", max_error=max_error),
        folder,
        folder / "int8.onnx",
    )
    costly = sorted((row for row in found["layers"] if row["error"]), key=lambda row: -row["error"])[:3]
    print(f"{name}: {time.process_time() - start:.0f} s of processor time", file=sys.stderr)
    return {
        "model": name,
        "samples": count,
        "max_error": max_error,
        "outputs": found["outputs"],
        "worst_layers": [[row["name"], row["error"]] for row in costly],
        "in_floats": [row["name"] for row in found["layers"] if row["precision"] == "float32"],
    }


if __name__ == "__main__":
    main()
