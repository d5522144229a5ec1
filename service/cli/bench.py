"""`relaxc bench`: how long an artifact takes, beside the framework that its model came from."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli.options import Artifact, Json, Seed, Threads, Verbose
from relaxc.service.cli.output import print_json, print_lines
from relaxc.service.cli.session import Dims, Inputs, check_made_from, choose_inputs, open_session
from relaxc.service.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relaxc.service.runtime import Session
    from relaxc.service.runtime.bench import BenchReport, Timing
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
    streams: Annotated[
        int,
        typer.Option("--streams", metavar="N", min=1, max=1024, help="Calls that go on at a time, each in a thread."),
    ] = 1,
    duration_s: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=0.01, max=86400, help="Time to measure for, after the warm-up."),
    ] = 3.0,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Time an artifact on random inputs, or on the inputs given with -i.

    Each side has a process of its own, and the same number of threads; they take turns, and one is paused while the
    other runs. A ratio compares the median times: below 1 is faster than the baseline. It is left out where more
    turns could change it by 10 %. The spread is from the 10th to the 90th percentile.
    """
    session = open_session(artifact, threads, with_torch=against is Against.TORCH, with_compiler=against is not None)
    from relaxc.service.cli import bench_sides
    from relaxc.service.runtime.sides import Side, by_turns

    values = choose_inputs(session.signature, inputs, dim, seed, fill=True)
    make = f"{bench_sides.__name__}:artifact"
    sides = {"relaxc": partial(Side, "relaxc", make, str(artifact), session.threads, values, streams=streams)}
    if against is not None:
        arguments = _checked(session, against, model)
        make = f"{bench_sides.__name__}:reference"
        sides[against.value] = partial(Side, against.value, make, *arguments, values, streams=streams)
    report, outputs = by_turns(sides, baseline=against.value if against else None, measure_s=duration_s)
    agreement = None if against is None else _agreement(session, outputs["relaxc"], outputs[against.value])
    if json:
        print_json(
            {
                "artifact": str(artifact),
                "threads": session.threads,
                "streams": streams,
                "is_loud": report.is_loud,
                **report.to_dict(),
                "outputs": agreement.to_dict() if agreement else None,
            }
        )
    else:
        _show(report, session.threads, streams, agreement)


def _checked(session: Session, against: Against, model: Path | None) -> tuple[Any, ...]:
    """What `reference` takes. Raise InvalidOption for a framework or a model that the artifact did not come from."""
    from relaxc.service import frontend

    if model is None:
        raise InvalidOption(f"--against {against} needs --model", option="model")
    format = frontend.identify(model)
    wanted = {"onnx": Against.ONNXRUNTIME, "pt2": Against.TORCH}[format.value]
    if against is not wanted:
        raise InvalidOption(f"{model} is {format}: use --against {wanted}", option="against")
    check_made_from(session.manifest, frontend.digest(model, format))
    manifest = session.manifest
    return str(model), format.value, session.threads, manifest.options["shapes"], manifest.passes


def _agreement(session: Session, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Verification:
    from relaxc.service.request import Precision
    from relaxc.service.runtime.compare import compare, judging_dtypes

    precision = session.manifest.options.get("precision")
    dtypes = judging_dtypes(
        session.signature,
        precision=Precision(precision) if precision else None,
        weights=session.manifest.weights.tensors,
    )
    return compare(found, wanted, dtypes)


_COLUMNS = ("p50", "p90", "p99", "min", "mean", "p95", "std")


def _cells(row: Timing) -> dict[str, str]:
    """By column, those first that a narrow terminal has too."""
    times = {name: f"{getattr(row, f'{name}_ms'):.3f}" for name in _COLUMNS}
    return {"side": row.name, "runs": str(row.samples), "per second": f"{row.throughput:.1f}", **times}


def _show(report: BenchReport, threads: int, streams: int, agreement: Verification | None) -> None:
    print(f"milliseconds, {threads} threads" + (f", {streams} calls at a time" if streams > 1 else ""))
    print_lines([_cells(row) for row in report.timings], texts=("side",))
    if report.is_loud:
        print(f"the machine is loud: other processes took {report.other_cores} cores meanwhile")
    for ratio in report.ratios:
        spread = f"p10 to p90 {ratio.p10:.3g} to {ratio.p90:.3g}"
        if ratio.median is None:
            low, high = f"{ratio.low:.3g}", f"{ratio.high:.3g}"
            print(f"no ratio to {ratio.baseline}: too noisy, between {low} and {high} ({spread})")
        else:
            print(
                f"{ratio.name} takes {ratio.median:.3g} \N{MULTIPLICATION SIGN} the time of {ratio.baseline} ({spread})"
            )
    if agreement is not None:
        print(f"outputs agree: {'yes' if agreement.passed else f'NO, {agreement.reason}'}")
