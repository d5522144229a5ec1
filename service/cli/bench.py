"""`relaxc bench`: how long an artifact takes, beside the framework that its model came from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli.options import Artifact, Json, Seed, Threads, Verbose
from relaxc.service.cli.output import console, print_json, table
from relaxc.service.cli.session import Dims, Inputs, choose_inputs, open_session
from relaxc.service.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relaxc.service.frontend import Reference
    from relaxc.service.runtime import Session
    from relaxc.service.runtime.bench import BenchReport
    from relaxc.service.runtime.verification import Verification

__all__ = ["bench"]


class Against(StrEnum):
    """What an artifact can be timed beside."""

    ONNXRUNTIME = "onnxruntime"
    TORCH = "torch"


def bench(
    artifact: Artifact,
    against: Annotated[
        Against | None, typer.Option("--against", help="Time this beside it, in turns; its outputs are compared too.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL", help="What the artifact was compiled from, for --against."),
    ] = None,
    inputs: Inputs = None,
    dim: Dims = None,
    seed: Seed = 0,
    threads: Threads = None,
    duration_s: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=0.01, max=86400, help="Time to measure for, after the warm-up."),
    ] = 3.0,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Time an artifact on random inputs, or on those of -i.

    Both sides use the same number of threads. A ratio is of times in the same round: below 1 is faster than the
    baseline; its spread is from the 10th to the 90th percentile.
    """
    session = open_session(artifact, threads, with_torch=against is Against.TORCH, with_compiler=against is not None)
    from relaxc.service.runtime.bench import bench

    values = choose_inputs(session.signature, inputs, dim, seed, fill=True)
    callables: dict[str, Any] = {"relaxc": lambda: session(values)}
    agreement = None
    if against is not None:
        reference = _reference(session, against, model)
        agreement = _agreement(session, values, reference)
        callables[against.value] = lambda: reference(values)
    report = bench(callables, baseline=against.value if against else None, measure_s=duration_s)
    if json:
        print_json(
            {
                "artifact": str(artifact),
                "threads": session.threads,
                **report.to_dict(),
                "outputs": agreement.to_dict() if agreement else None,
            }
        )
    else:
        _show(report, session.threads, agreement)


def _reference(session: Session, against: Against, model: Path | None) -> Reference:
    """The model in its framework. Raise InvalidOption if that, or the model, is not what the artifact came from."""
    from relaxc.service import frontend
    from relaxc.service.request import CompileOptions
    from relaxc.service.rounding import Rounding

    if model is None:
        raise InvalidOption(f"--against {against} needs --model", option="model")
    format = frontend.identify(model)
    wanted = {"onnx": Against.ONNXRUNTIME, "pt2": Against.TORCH}[format.value]
    if against is not wanted:
        raise InvalidOption(f"{model} is {format}: use --against {wanted}", option="against")
    made_from = session.manifest.digests["model"]
    if made_from not in (frontend.digest(model, format).digest, frontend.former_digest(model, format)):
        raise InvalidOption(f"the artifact was not compiled from {model}: their digests differ", option="model")
    shapes = CompileOptions.from_dict({"shapes": session.manifest.options["shapes"]}).shapes
    rounding = Rounding.of(session.manifest.passes)
    return frontend.reference(
        model, format, threads=session.threads, shapes=dict(shapes), fastest=True, rounding=rounding
    )


def _agreement(session: Session, values: Mapping[str, Any], reference: Reference) -> Verification:
    from relaxc.service.request import Precision
    from relaxc.service.runtime.compare import compare, judging_dtypes

    precision = session.manifest.options.get("precision")
    dtypes = judging_dtypes(
        session.signature,
        precision=Precision(precision) if precision else None,
        weights=session.manifest.weights.tensors,
    )
    return compare(session(values), reference(values), dtypes)


_COLUMNS = ("min", "mean", "p50", "p90", "p95", "p99", "std")


def _show(report: BenchReport, threads: int, agreement: Verification | None) -> None:
    numbers = ("runs", *_COLUMNS, "per second")
    title = f"milliseconds, {threads} threads"
    shown = table(title, "", "runs", *_COLUMNS, "per second", numbers=numbers)
    for row in report.timings:
        times = (f"{getattr(row, f'{name}_ms'):.3f}" for name in _COLUMNS)
        shown.add_row(row.name, str(row.samples), *times, f"{row.throughput:.1f}")
    console().print(shown)
    for ratio in report.ratios:
        spread = f"{ratio.p10:.3f} to {ratio.p90:.3f}"
        print(f"{ratio.name} takes {ratio.median:.3f} of the time of {ratio.baseline} ({spread})")
    if agreement is not None:
        print(f"outputs agree: {'yes' if agreement.passed else f'NO, {agreement.reason}'}")
