"""`relaxc compile`: a model in, one verified .so out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli import report
from relaxc.service.cli.options import (
    Json,
    Keep,
    MaxError,
    Method,
    Model,
    NoRecords,
    NoVerify,
    OptLevel,
    Plugins,
    PrecisionName,
    Records,
    RequireTuned,
    Samples,
    Seed,
    Shapes,
    SmallWeights,
    States,
    Target,
    Values,
    Verbose,
    Weights,
    calibration_for,
    options_for,
)
from relaxc.service.cli.output import console, facts, print_json, seconds, size
from relaxc.service.cli.progress import StageProgress
from relaxc.service.cli.remote import Remote

if TYPE_CHECKING:
    from relaxc.service.artifact.compiled import CompiledArtifact
    from relaxc.service.request import CompileOptions

__all__ = ["compile"]

_TOP = 5


def compile(
    context: typer.Context,
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT.so", help="The file to write.", show_default=False)
    ],
    target: Target = "auto",
    shape: Shapes = None,
    value: Values = None,
    state: States = None,
    precision: PrecisionName = None,
    weights: Weights = None,
    calibration: Samples = None,
    calibrate: Method = "minmax",
    max_error: MaxError = None,
    keep: Keep = None,
    small_weights: SmallWeights = False,
    opt_level: OptLevel = 2,
    dump: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write what each stage saw to DIR, as numbered files; always recompiles."),
    ] = None,
    plugin: Plugins = None,
    records: Records = None,
    no_records: NoRecords = False,
    require_tuned: RequireTuned = None,
    no_verify: NoVerify = False,
    seed: Seed = 0,
    force: Annotated[bool, typer.Option("--force", help="Compile even if the store has the artifact.")] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print how long each pass of the compile and each step of the build took.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compile a model into one shared library that holds its weights and a manifest, and check its numbers.

    `relaxc --server URL compile …` compiles on a server, with the same options, output and errors; `--target auto` is
    then the server's CPU.

    The artifact comes from the store if an equal request was compiled before. Unless --no-verify is given, an
    artifact whose outputs differ from ONNX Runtime's or torch's on random inputs is an error.

    Kernels with a tuning record that fits use its parameters; the manifest names the record behind each. See
    `relaxc tune` and `relaxc records`.
    """
    _check_writable(output, model)
    options = options_for(
        shape, precision, opt_level, plugin, no_verify, seed, records, no_records, require_tuned, weights,
        calibration_for(calibration, calibrate, max_error, keep), small_weights,
        value, state,
    )  # fmt: skip
    remote: Remote = context.obj
    if remote.url is None:
        made = _here(model, output, target, options, dump, force)
    else:
        remote.refuse(dump=dump, plugin=plugin, force=force, records=records)
        made = _there(remote, model, output, target, options)
    if json:
        print_json(_as_json(made))
    else:
        _print_summary(made)
        if timings:
            console().print(report.timings(made.build_record))


def _here(
    model: Path, output: Path, target: str, options: CompileOptions, dump: Path | None, force: bool
) -> CompiledArtifact:
    from relaxc.service.artifact.compiled import check_output
    from relaxc.service.compiler import prepare
    from relaxc.service.jobs.local.calls import compile_local, warm_for

    warm_for(model)
    request = prepare(model, target=target, options=options)
    check_output(output, [file for file, _ in request.model.seen])
    with StageProgress() as progress:
        return compile_local(request, progress, output=output, dump_dir=dump, force=force)


def _there(remote: Remote, model: Path, output: Path, target: str, options: CompileOptions) -> CompiledArtifact:
    with remote.client() as client, StageProgress() as progress:
        return client.compile(model, output, target=target, options=options, on_event=progress)


def _check_writable(output: Path, model: Path) -> None:
    """Raise InvalidOption before the work, not after it."""
    from relaxc.service.artifact.compiled import check_output

    check_output(output, [model])


def _as_json(made: CompiledArtifact) -> dict[str, Any]:
    return {
        "output": str(made.path),
        "files": [str(file) for file in made.files],
        "digest": made.digest,
        "size_bytes": sum(file.stat().st_size for file in made.files),
        "cached": made.cached,
        "build": dict(made.build_record),
        "manifest": made.manifest.to_dict(),
    }


def _print_summary(made: CompiledArtifact) -> None:
    manifest, stages = made.manifest, made.build_record.get("stages", {})
    when = f"from the store, built in {seconds(sum(stages.values()))}" if made.cached else seconds(sum(stages.values()))
    facts(
        [
            *((f"{file}", size(file.stat().st_size)) for file in made.files),
            ("compiled", when),
            ("stages", ", ".join(f"{name} {seconds(took)}" for name, took in stages.items())),
            ("target", manifest.target_names),
            ("fused", report.fused(manifest)),
            *(("state", line) for line in report.state(manifest)),
            ("tuned", report.tuned(manifest)),
            *(("templates", line) for line in report.untemplated(manifest)),
            *(("rounded", line) for line in report.rounded(manifest)),
            *(("int8", line) for line in report.calibrated(manifest)),
            *(("left out", line) for line in report.left_out(manifest)),
            *(("verified", line) for line in report.verifications(manifest)),
        ]
    )
    title = f"the heaviest of {len(manifest.schedule)} PrimFuncs"
    console().print(report.prim_funcs(title, report.heaviest(manifest, _TOP)))
