"""Model files in, Relax modules out: by format, with nothing heavy imported before it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relaxc.service.errors import InvalidOption
from relaxc.service.frontend.model import ImportedModel, ModelInfo, Move, Reference, Shapes, Unsupported
from relaxc.service.frontend.model_file import digest, external_files, former_digest, identify
from relaxc.service.request import Calibration, ModelFormat
from relaxc.service.rounding import Rounding

__all__ = [
    "ImportedModel",
    "ModelInfo",
    "Move",
    "Reference",
    "Shapes",
    "Unsupported",
    "calibrate",
    "digest",
    "double_reference",
    "external_files",
    "former_digest",
    "identify",
    "input_ranges",
    "inspect",
    "load",
    "moved_reference",
    "plain_reference",
    "reference",
    "samples",
    "tensors",
    "unquantized_reference",
]

_MODULES = {
    ModelFormat.ONNX: "relaxc.service.frontend.onnx.frontend",
    ModelFormat.PT2: "relaxc.service.frontend.pt2.frontend",
}


def _frontend(format: ModelFormat) -> Any:
    return importlib.import_module(_MODULES[format])


def load(
    path: Path, format: ModelFormat, *, shapes: Shapes | None = None, values: Mapping[str, int] | None = None
) -> ImportedModel:
    """Return the model as Relax, with `shapes` in place of the inputs' own, for these `values` of inputs alone.

    Raise a ModelError for a file that cannot be used, InvalidShape for a shape that does not fit it, and InvalidOption
    for a value of what is no input of one integer.
    """
    model: ImportedModel = _frontend(format).load(path, shapes=dict(shapes or {}), values=dict(values or {}))
    return model


def inspect(path: Path, format: ModelFormat) -> ModelInfo:
    """Return what the file holds, unsupported operators included. Raise a ModelError for a damaged or unsafe file."""
    info: ModelInfo = _frontend(format).inspect(path)
    return info


def tensors(path: Path, format: ModelFormat) -> Iterator[Any]:
    """Return the tensors that the file holds, as arrays."""
    found: Iterator[Any] = _frontend(format).tensors(path)
    return found


def reference(
    path: Path,
    format: ModelFormat,
    *,
    threads: int = 1,
    shapes: Shapes | None = None,
    fastest: bool = False,
    rounding: Rounding | None = None,
) -> Reference:
    """Return the model in ONNX Runtime or torch, on the CPU; one thread makes its results repeatable.

    With `fastest` it is what a user would run: a peer to be timed against, whose rewrites may cost digits. With
    `rounding` its products have the weights that this rounded; lookups in the same tensors have not.
    """
    run: Reference = _frontend(format).reference(
        path, threads=threads, shapes=dict(shapes or {}), fastest=fastest, rounding=rounding
    )
    return run


def moved_reference(
    path: Path,
    format: ModelFormat,
    move: Move,
    *,
    seed: int,
    by: float,
    threads: int = 1,
    shapes: Shapes | None = None,
    rounding: Rounding | None = None,
) -> Reference | None:
    """Return `reference` of the model with `move` of it moved by up to `by` of itself, as `seed` says.

    Quantizations and values are moved anew in each run. None for a model that has none, or that does not run so.
    """
    run: Reference | None = _frontend(format).moved_reference(
        path, move, threads=threads, shapes=dict(shapes or {}), seed=seed, by=by, rounding=rounding
    )
    return run


def plain_reference(
    path: Path, format: ModelFormat, *, threads: int = 1, shapes: Shapes | None = None, rounding: Rounding | None = None
) -> Reference | None:
    """Return `reference` without any of its own rewrites, a second opinion; None where it makes none."""
    run: Reference | None = _frontend(format).plain_reference(
        path, threads=threads, shapes=dict(shapes or {}), rounding=rounding
    )
    return run


def double_reference(
    path: Path,
    format: ModelFormat,
    *,
    shapes: Shapes | None = None,
    rounding: Rounding | None = None,
    moves: tuple[int, float] | None = None,
) -> Reference | None:
    """Return `reference` in float64 wherever it is in float32, its outputs of the model's dtypes: an opinion that no
    order of sums changes. It is slow. None for a model that quantizes or that does not run so; what it finds out in a
    run is a ModelError. With `moves`, a seed and a share, each value that it computes is moved (`Move.VALUES`).
    """
    build = _frontend(format).double_reference
    run: Reference | None = build(path, shapes=dict(shapes or {}), rounding=rounding, moves=moves)
    return run


def calibrate(
    path: Path, format: ModelFormat, samples: Path, calibration: Calibration, folder: Path, out: Path
) -> dict[str, Any]:
    """Write the model quantized to int8 as ONNX to `out`, and return how far it is from the model in floats.

    `folder` is for files in between. Raise InvalidOption for a format that cannot be, or samples that do not fit.
    """
    if format is not ModelFormat.ONNX:
        raise InvalidOption(
            "int8 by calibration takes ONNX models",
            option="calibration",
            remedy="Export the program with torch.onnx.export(…, dynamo=True), or quantize it with torchao.",
        )
    from relaxc.service.frontend.onnx.calibrate import calibrate as quantize

    return quantize(path, samples, calibration, folder, out)


def input_ranges(path: Path, format: ModelFormat) -> dict[str, tuple[float, float]]:
    """Return input → the least and the largest value that a quantized model was made for, of inputs that say so."""
    found: dict[str, tuple[float, float]] = _frontend(format).input_ranges(path)
    return found


def samples(path: Path, format: ModelFormat, file: Path) -> list[dict[str, Any]]:
    """Return the samples of a model's inputs that an `.npz` has. Raise InvalidOption for what does not fit."""
    found: list[dict[str, Any]] = _frontend(format).samples(path, file)
    return found


def unquantized_reference(
    path: Path, format: ModelFormat, *, threads: int = 1, shapes: Shapes | None = None
) -> Reference | None:
    """Return `reference` of the model whose quantizations saturate and do not round; None for one that has none."""
    run: Reference | None = _frontend(format).unquantized_reference(path, threads=threads, shapes=dict(shapes or {}))
    return run
