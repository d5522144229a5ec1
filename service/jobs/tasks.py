"""What runs in a child: entries of the form `entry(payload, workdir, emit)`; stages are imported in here only."""

from __future__ import annotations

import mmap
from dataclasses import asdict
from pathlib import Path
from typing import Any

from service.jobs.task import Emit
from service.request import CompileRequest, ModelFormat, ModelRef

__all__ = ["compile_model", "cover_model", "inspect_model", "refer_to_model", "tune_model", "verify_records"]


def compile_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Every stage. Payload: `request`, and `dump_dir` or None. Leaves the files that the result names in `workdir`."""
    from service import compiler

    dump_dir = Path(payload["dump_dir"]) if payload.get("dump_dir") else None
    compiler.run(CompileRequest.from_dict(payload["request"]), workdir, emit, dump_dir=dump_dir)


def cover_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """`compiler.cover`. Payload: `request`. The result has rows of `Kernel.to_dict` under `kernels`."""
    from service import compiler

    compiler.cover(CompileRequest.from_dict(payload["request"]), emit)


def verify_records(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """`drift.run`. Payload: `request`, `sample` and `seed`."""
    from service import drift

    request = CompileRequest.from_dict(payload["request"])
    drift.run(request, workdir, emit, sample=payload["sample"], seed=payload["seed"])


def inspect_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """`frontend.inspect`. Payload: `path`, `format`. The result has the ModelInfo's fields under `info`."""
    from service import frontend

    info = frontend.inspect(Path(payload["path"]), ModelFormat(payload["format"]))
    emit({"event": "result", "info": info.to_dict()})


def refer_to_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """The ModelRef of an uploaded file. Payload: `path`, and `sha256` of that file. The result has it under `model`.

    Only an ONNX file with external data, which must name a `location` for it, has a digest of its own.
    """
    from service import frontend

    path = Path(payload["path"])
    format = frontend.identify(path)
    if format is ModelFormat.ONNX and _mentions(path, b"location"):
        model = frontend.digest(path, format)
    else:
        model = ModelRef(format, payload["sha256"], path.stat().st_size, path)
    emit({"event": "result", "model": {**asdict(model), "path": str(path)}})


def tune_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """`tuner.run`. Payload: `request`, and any of TuneOptions. Leaves the files that the result names in `workdir`."""
    from service import tuner
    from service.tuning.options import TuneOptions

    options = {name: value for name, value in payload.items() if name != "request"}
    tuner.run(CompileRequest.from_dict(payload["request"]), TuneOptions.from_dict(options), workdir, emit)


def _mentions(path: Path, word: bytes) -> bool:
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0
