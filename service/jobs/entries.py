"""What runs in a child: entries of the form `entry(payload, workdir, emit)`; stages are imported in here only."""

from __future__ import annotations

import mmap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from relaxc.service.errors import InvalidOption
from relaxc.service.process.task import Emit
from relaxc.service.request import CompileRequest, ModelFormat

__all__ = [
    "bench_artifact",
    "build_candidate",
    "check_model",
    "compile_model",
    "cover_model",
    "inspect_model",
    "tune_model",
    "verify_artifact",
    "verify_records",
]

_BENCH_S = 3.0


def compile_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Run every stage. Leave the files that the result names in `workdir`.

    Payload: `request`; `dump_dir` or None; `records`, the digest of the records that the request's key is for, or None;
    `kernels`, what `start_builder` takes, or None where this process is to build them itself.
    """
    from relaxc.service import compiler
    from relaxc.service.lowering.kernel_builder import start_builder

    objects = start_builder(payload["kernels"], workdir) if payload.get("kernels") else None  # before the model is read

    dump_dir = Path(payload["dump_dir"]) if payload.get("dump_dir") else None
    request = CompileRequest.from_dict(payload["request"])
    compiler.run(request, workdir, emit, dump_dir=dump_dir, records=payload.get("records"), objects=objects)


def cover_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Run `compiler.cover`. Payload: `request`. The result has rows of `Kernel.to_dict` under `kernels`."""
    from relaxc.service import compiler

    compiler.cover(CompileRequest.from_dict(payload["request"]), emit)


def verify_records(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Run `drift.run`. Payload: `request`, `sample` and `seed`."""
    from relaxc.service import drift

    request = CompileRequest.from_dict(payload["request"])
    drift.run(request, workdir, emit, sample=payload["sample"], seed=payload["seed"])


def inspect_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Run `frontend.inspect`. Payload: `path`, `format`. The result has the ModelInfo's fields under `info`."""
    from relaxc.service import frontend

    info = frontend.inspect(Path(payload["path"]), ModelFormat(payload["format"]))
    emit({"event": "result", "info": info.to_dict()})


def check_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Raise where an uploaded file is no model, or its external data is not what it may be. Payload: `path`.

    The result is empty: what the server keeps of a model, it finds itself. Only an ONNX file with external data names
    a `location` for it.
    """
    from relaxc.service import frontend

    path = Path(payload["path"])
    format = frontend.identify(path)
    if format is ModelFormat.ONNX and _mentions(path, b"location"):
        frontend.external_files(path, format)
    emit({"event": "result"})


def tune_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Run `tuner.run`. Payload: `request`, and any of TuneOptions. Leave the files of the result in `workdir`."""
    from relaxc.service import tuner
    from relaxc.service.tuning.options import TuneOptions

    options = {name: value for name, value in payload.items() if name != "request"}
    tuner.run(CompileRequest.from_dict(payload["request"]), TuneOptions.from_dict(options), workdir, emit)


def build_candidate(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Build a candidate of a tuning elsewhere, as `FarBuilders` asks for it in the payload; the result answers it."""
    from relaxc.service.tuning import candidate

    emit({"event": "result", **candidate.build(payload, workdir)})


def bench_artifact(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Time an artifact on random inputs. Payload: `artifact`, `seconds` or None, `seed`.

    The result has BenchReport's fields, `threads`, and a `profile` by PrimFunc (a ProfileReport's fields), under
    `report`. Raise MachineMismatch where it cannot run here.
    """
    from relaxc.service.runtime import load
    from relaxc.service.runtime.bench import bench
    from relaxc.service.runtime.inputs import random_inputs
    from relaxc.service.runtime.profile import profile

    emit({"event": "stage", "stage": "bench", "state": "start"})
    start = time.perf_counter()
    session = load(payload["artifact"])
    values = random_inputs(session.signature, seed=payload["seed"])
    report = bench({"relaxc": lambda: session(values)}, measure_s=payload["seconds"] or _BENCH_S)
    seconds = round(time.perf_counter() - start, 4)
    emit({"event": "stage", "stage": "bench", "state": "done", "seconds": seconds})
    emit({"event": "stage", "stage": "profile", "state": "start"})
    start = time.perf_counter()
    by_function = profile(session, values)
    seconds = round(time.perf_counter() - start, 4)
    emit({"event": "stage", "stage": "profile", "state": "done", "seconds": seconds})
    found = {"threads": session.threads, **report.to_dict(), "profile": by_function.to_dict()}
    emit({"event": "result", "report": found})


def verify_artifact(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Compare an artifact with the model that it was compiled from. Payload: `artifact`, `model` as a ModelRef's
    fields, `aliases`, other digests by which an artifact may name that model, and optionally `samples`, an .npz of
    inputs to compare on besides. The result has Verification's fields, or `reason` where nothing could be compared,
    under `report`.

    Raise InvalidOption for another model, VerificationFailed where the numbers differ.
    """
    from relaxc.service.compiling import stages, verifier
    from relaxc.service.frontend.onnx.samples import read_samples
    from relaxc.service.runtime import load

    session = load(payload["artifact"])
    manifest = session.manifest
    model = CompileRequest.from_dict(
        {"model": payload["model"], "target": manifest.target.to_dict(), "options": {**manifest.options, "plugins": []}}
    )
    if manifest.digests["model"] not in (model.model.digest, *payload["aliases"]):
        raise InvalidOption("the artifact was not compiled from this model: their digests differ", option="model")
    request = replace(model, options=replace(model.options, verify=True))
    file = payload.get("samples")
    samples = read_samples(Path(file), session.signature.inputs) if file else ()
    with stages.Stages(emit)("verify") as progress:
        found = verifier.verify(request, session.signature, lambda: session, progress, samples)
    report = {"passed": None, "reason": found} if isinstance(found, str) else found.to_dict()
    emit({"event": "result", "report": report})


def _mentions(path: Path, word: bytes) -> bool:
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0
