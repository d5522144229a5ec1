"""One compile from a model file to a verified artifact: the only page that knows every stage.

load → optimize → schedule → build → verify → pack. `prepare` makes the frozen request and is cheap;
`run` does the work in this process and is called in a child by `process.worker`, under limits.
"""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaxc.service.compiling.ahead import Ahead
from relaxc.service.compiling.calibration import QUANTIZED, Samples, calibrated, quantized, samples_of, without_places
from relaxc.service.compiling.model_coverage import coverage_of, require_records
from relaxc.service.compiling.stages import Front, Stages
from relaxc.service.compiling.verifier import verify
from relaxc.service.config import settings
from relaxc.service.dump import Dump, DumpFolder, no_dump
from relaxc.service.errors import (
    InvalidOption,
    InvalidRecords,
    ModelNotFound,
)
from relaxc.service.process.task import Emit
from relaxc.service.repro import repro_command
from relaxc.service.request import CompileOptions, CompileRequest, TargetSpec, canonical_json, is_utf8
from relaxc.service.signature import Signature

if TYPE_CHECKING:
    from relaxc.service.artifact.manifest import Manifest
    from relaxc.service.artifact.packing import Built
    from relaxc.service.lowering.build import Objects

__all__ = [
    "cover",
    "load_and_schedule",
    "places_read",
    "prepare",
    "run",
]


def prepare(
    path: Path | str, *, target: str | TargetSpec = "auto", options: CompileOptions | None = None
) -> CompileRequest:
    """Return the frozen request for the model at `path`: format, digest, and the resolved target. Import no tvm.

    Raise ModelNotFound (also for a path that is not UTF-8), UnknownFormat, ModelTooLarge, ModelUnsafe or InvalidTarget.
    """
    from relaxc.service import frontend
    from relaxc.service.lowering.target import resolve

    path = Path(path).absolute()  # the child has another working folder
    if not is_utf8(path):
        raise ModelNotFound(f"cannot read {path}: its path is not UTF-8", remedy="Rename it.", path=str(path))
    located = _located(options or CompileOptions())
    resolved = resolve(target) if isinstance(target, str) else target
    return CompileRequest(frontend.digest(path, frontend.identify(path)), resolved, located)


def _located(options: CompileOptions) -> CompileOptions:
    """The same with paths from the root: a key is of the files that the child reads, which starts in another folder."""
    plugins, records = (
        tuple(str(Path(each).absolute()) for each in given) for given in (options.plugins, options.records)
    )
    given = options.calibration
    calibration = given and replace(given, samples=str(Path(given.samples).absolute()))
    return replace(options, plugins=plugins, records=records, calibration=calibration)


def run(
    request: CompileRequest,
    workdir: Path,
    emit: Emit,
    *,
    dump_dir: Path | None = None,
    records: str | None = None,
    objects: Objects | None = None,
) -> None:
    """Compile `request` in this process; leaves the files that the `result` event names, and build.json, in `workdir`.

    `records` is the digest of the tuning records that were meant, None for any: a tuner may have written since.
    `objects` makes the kernels' machine code for a CPU, this process if None.
    Raise a RelaxcError, whose `fields["stage"]` names the stage that failed.
    """
    from relaxc.service.artifact.packing import LIBRARY, pack_parts
    from relaxc.service.records.sources import joined

    stage = Stages(emit)
    dump: Dump = DumpFolder(dump_dir) if dump_dir else no_dump
    asked, calibration = request, None
    samples: list[dict[str, Any]] = []
    if request.options.calibration is not None:
        with stage("import"):
            request, calibration = quantized(request, workdir)
            samples = samples_of(asked)
        if dump_dir is not None:
            shutil.copyfile(request.model.path, dump_dir / QUANTIZED)
    requests = [replace(request, target=each) for each in request.target.each]
    ahead = Ahead(request)
    fronts = [load_and_schedule(each, stage, dump, ahead.begin) for each in requests]
    if records not in (None, joined([made.records for made in fronts])):
        raise InvalidRecords("the tuning records changed while the compile waited", remedy="Compile again.")
    command = repro_command(without_places(asked), f"model.{asked.model.format}")

    def part(index: int, each: CompileRequest) -> Built:
        made = fronts.pop(0)
        built = _build(each, made, command, workdir / f"library{index}.so", stage, dump, objects)
        signature = made.imported.signature
        del made  # and with it the model's constants, for the reference to have the memory
        gc.collect()  # rewriters of the graph refer to themselves, and to the module
        if calibration is not None:
            built = replace(built, manifest=calibrated(built.manifest, asked, calibration))
        return _verified(each, signature, built, stage, samples, ahead)

    parts = [part(index, each) for index, each in enumerate(requests)]
    with stage("pack"):
        libraries = [built.library for built in parts]
        files = pack_parts(parts, workdir / LIBRARY, embed_max_bytes=settings().embed_weights_max_bytes)
        for library in libraries:
            library.unlink()
        if calibration is not None:
            request.model.path.unlink()
    steps = {name: round(seconds, 5) for name, seconds in stage.timings.seconds.items()}
    (workdir / "build.json").write_text(json.dumps({"stages": stage.seconds, "timings": steps}))
    emit({"event": "result", "files": [file.name for file in files], "stages": stage.seconds})


def _build(
    request: CompileRequest,
    made: Front,
    command: str,
    library: Path,
    stage: Stages,
    dump: Dump,
    objects: Objects | None,
) -> Built:
    from relaxc.service import lowering, passes
    from relaxc.service.artifact.packing import Built, table_of
    from relaxc.service.artifact.precisions import precisions
    from relaxc.service.lowering.target import to_tvm

    with stage("build"):
        target, signature = to_tvm(request.target), made.imported.signature
        module, memory = passes.finalize(made.scheduled.module, target, bounds=signature.bounds, timings=stage.timings)
        lowering.build(module, request.target, library, dump=dump, timings=stage.timings, objects=objects)
        report = {**made.optimized.report.to_dict(), "memory": memory.to_dict()}
        if (peak := lowering.peak_of(request.target)) is not None:
            report["peak"] = peak
            report["untemplated"] = lowering.untemplated(made.scheduled.report, request.target, peak)
        report["precisions"] = precisions(made.scheduled.report, request.options)
    manifest = replace(_manifest(request, made, command), passes=report)
    weights = {**made.optimized.weights, **{f"initial.{name}": value for name, value in made.imported.initial.items()}}
    return Built(library, weights, manifest.with_weights(table_of(weights)))


def _verified(
    request: CompileRequest,
    signature: Signature,
    built: Built,
    stage: Stages,
    samples: Samples,
    ahead: Ahead,
) -> Built:
    from relaxc.service.runtime.session import Session

    with stage("verify") as progress:
        session = partial(Session.from_parts, built.library, built.weights, built.manifest)
        found = verify(request, signature, session, progress, samples, ahead)
    return replace(built, manifest=built.manifest.with_verification(found))


def load_and_schedule(
    request: CompileRequest,
    stage: Stages,
    dump: Dump,
    imported_as: Callable[[Signature], None] = lambda signature: None,
) -> Front:
    """Everything up to a schedule for each PrimFunc. Raise NotTuned where the request requires records.

    `imported_as` is told the signature as soon as it is known.
    """
    from relaxc.service import frontend, lowering, passes
    from relaxc.service.frontend.feedback import with_state
    from relaxc.service.lowering.target import to_tvm
    from relaxc.service.records.sources import records_for

    options = request.options
    if options.calibration is not None:
        raise InvalidOption(
            "int8 by calibration is for compiles",
            option="calibration",
            remedy="`relaxc compile … --dump DIR` writes the quantized model there, as ONNX, for everything else.",
        )
    records = records_for(request.target, options)
    plugins = [passes.load_plugin(Path(path)) for path in options.plugins]
    with stage("import"):
        imported = frontend.load(
            request.model.path,
            request.model.format,
            shapes=dict(options.shapes),
            values=dict(options.values),
        )
        imported = with_state(imported, None if options.state is None else dict(options.state))
        known = _weights_of(request) if options.weights else frozenset()
        dump("relax_imported", lambda: imported.module.script(show_meta=False))
    imported_as(imported.signature)
    planner = lowering.planner_for(
        request.target, records if options.opt_level else None, small_weights=options.small_weights
    )
    with stage("optimize"):
        optimized = passes.optimize(
            imported.module,
            to_tvm(request.target),
            options,
            plugins=plugins,
            planner=planner,
            known_weights=known,
            dump=dump,
            timings=stage.timings,
        )
        told = optimized.report.state.values()
        names = [spec.name for spec in imported.signature.state]
        optimized.report.state = dict(zip(names, told, strict=True))
        if optimized.report.rounding is not None:
            optimized.report.rounding.require()
    with stage("schedule") as progress:
        scheduled = lowering.schedule(
            optimized.module,
            request.target,
            opt_level=options.opt_level,
            dump=dump,
            progress=progress,
            records=records,
            planner=planner,
        )
        if options.require_tuned is not None:
            require_records(request, coverage_of(request, imported.signature, optimized, scheduled))
    return Front(imported, optimized, scheduled, records.digest)


def _weights_of(request: CompileRequest) -> frozenset[str]:
    """The digests of the matrices in the model's file."""
    from relaxc.service import frontend
    from relaxc.service.rounding import digests

    return frozenset(digests(frontend.tensors(request.model.path, request.model.format)))


def cover(request: CompileRequest, emit: Emit) -> None:
    """Return which kernels of the model have records; the `result` event has the Kernel rows under `kernels`.

    Runs the stages before the build in this process. Raise a RelaxcError, whose `fields["stage"]` names the stage.
    """
    request.target.single("a list of kernels")
    request = replace(request, options=replace(request.options, require_tuned=None))
    made = load_and_schedule(request, Stages(emit), no_dump)
    found = coverage_of(request, made.imported.signature, made.optimized, made.scheduled)
    emit({"event": "result", "kernels": [kernel.to_dict() for kernel in found.kernels]})


def places_read(request: CompileRequest) -> list[Path]:
    """Return the files and folders, beside the model, that a compile of `request` reads: plugins, kernels, records."""
    from relaxc.service.input_files import kernel_files, named_files
    from relaxc.service.records.sources import places

    kernels = [file for plugin in request.options.plugins for file in kernel_files(Path(plugin)) if file.is_file()]
    return [*named_files(request.options), *kernels, *places(request.options)]


def _manifest(request: CompileRequest, made: Front, command: str) -> Manifest:
    """All that the artifact says of itself but its numbers; nothing of this build alone, such as a path or a time."""
    from relaxc.service.artifact.key import key_for
    from relaxc.service.artifact.manifest import Manifest, Requires

    key = dict(key_for(request).entries)
    options = request.options.to_dict()
    del options["records"]  # their digest says what they are, wherever they were
    return Manifest(
        signature=made.imported.signature,
        target=request.target,
        requires=Requires.of(request.target, metadata.version("apache-tvm")),
        digests={
            "model": request.model.digest,
            "options": hashlib.sha256(canonical_json(options).encode()).hexdigest(),
            "tuning": made.records,
        },
        versions={name.partition(".")[2]: text for name, text in key.items() if name.startswith(("version.", "tool."))},
        options=options,
        command=command,
        schedule=made.scheduled.report,
    )
