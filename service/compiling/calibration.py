"""Compiles in int8 by calibration: the quantized model in place of one in floats, and what a manifest says of it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaxc.service.request import CompileOptions, CompileRequest, canonical_json

if TYPE_CHECKING:
    from relaxc.service.artifact.manifest import Manifest

__all__ = ["QUANTIZED", "Samples", "calibrated", "quantized", "samples_of", "without_places"]

Samples = Sequence[Mapping[str, Any]]
"""Arrays by the name of the input."""

QUANTIZED = "quantized.onnx"
"""The model that an int8 artifact is compiled from, in the job's folder and in a dump."""

_VERIFIED_WITH = 2
"""Of the samples: each takes seven runs of a reference."""


def quantized(request: CompileRequest, folder: Path) -> tuple[CompileRequest, dict[str, Any] | None]:
    """Return the request for the model quantized to int8, which is written into `folder`, and the report of that.

    The request itself, and None, where no such precision is asked for. Raise InvalidOption for samples that do not fit.
    """
    from relaxc.service import frontend

    given, model = request.options.calibration, request.model
    if given is None:
        return request, None
    samples = model.path.parent / given.samples
    with tempfile.TemporaryDirectory(dir=folder) as between:
        report = frontend.calibrate(model.path, model.format, samples, given, Path(between), folder / QUANTIZED)
    options = replace(request.options, precision=None, calibration=None)
    made = replace(model, path=folder / QUANTIZED)
    return replace(request, model=made, options=options), report


def samples_of(request: CompileRequest) -> list[dict[str, Any]]:
    """Return some of the samples that a request is calibrated with, to compare the artifact on: the first and the last.

    Raise InvalidOption for samples that do not fit.
    """
    from relaxc.service import frontend

    given, model = request.options.calibration, request.model
    if given is None:
        return []
    found = frontend.samples(model.path, model.format, model.path.parent / given.samples)
    return found[:: max(1, len(found) - 1)][:_VERIFIED_WITH]


def calibrated(manifest: Manifest, asked: CompileRequest, report: dict[str, Any]) -> Manifest:
    """Return the manifest of what was asked for: the model's own, with the options that it was quantized by."""
    from relaxc.service.artifact.precisions import precisions

    options = without_places(asked).options.to_dict()
    del options["records"]
    digests = {**manifest.digests, "options": hashlib.sha256(canonical_json(options).encode()).hexdigest()}
    kernels = precisions(manifest.schedule, CompileOptions(weights=asked.options.weights), calibrated=True)
    passes = {**manifest.passes, "calibration": report, "precisions": kernels}
    return replace(manifest, options=options, digests=digests, passes=passes)


def without_places(request: CompileRequest) -> CompileRequest:
    """Return the request with the names of its records alone: the same artifact comes from wherever they are."""
    options = replace(request.options, records=tuple(Path(place).name for place in request.options.records))
    if (given := options.calibration) is not None:
        options = replace(options, calibration=replace(given, samples=Path(given.samples).name))
    return replace(request, options=options)
