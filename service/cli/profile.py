"""`relaxc profile`: where an artifact's time goes, by PrimFunc."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.arrays import replacing
from service.cli.options import Artifact, Json, Seed, Threads, Verbose
from service.cli.output import console, print_json, table
from service.cli.session import Dims, Inputs, choose_inputs, open_session

if TYPE_CHECKING:
    from service.runtime.profile import ProfileReport

__all__ = ["profile"]

_NUMBERS = ("calls", "ms", "share", "GFLOP/s", "GB/s", "of peak")


def profile(
    artifact: Artifact,
    inputs: Inputs = None,
    dim: Dims = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write one run for chrome://tracing or Perfetto.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="Runs to take the median of.")] = 20,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show the time of every PrimFunc of an artifact, slowest first, beside the work that it does.

    `of peak` is the larger of its shares of what this machine can do: arithmetic, or bytes from memory.
    The peaks are measured once, and kept in the cache folder.
    """
    import json as text

    session = open_session(artifact, threads)
    from service.runtime.profile import profile

    report = profile(session, choose_inputs(session.signature, inputs, dim, seed, fill=True), runs=runs)
    if trace:
        with replacing(trace) as temporary:
            temporary.write_text(text.dumps(report.trace()))
    if json:
        print_json({"artifact": str(artifact), "threads": session.threads, **report.to_dict()})
    else:
        _show(report)


def _show(report: ProfileReport) -> None:
    shown = table("", "PrimFunc", *_NUMBERS, "bound by", "scheduled by", numbers=_NUMBERS)
    for row in report.functions:
        rates = (f"{rate:.1f}" if rate is not None else "" for rate in (row.gflops, row.gbps))
        share = f"{row.of_peak:.0%}" if row.of_peak is not None else ""
        by = row.rule or "" if row.source in ("rule", None) else f"{row.rule} ({row.source})"
        shown.add_row(
            row.function, str(row.calls), f"{row.time_ms:.3f}", f"{row.share:.1%}", *rates, share, row.bound or "", by
        )
    console().print(shown)
    print(f"a run takes {report.total_ms:.3f} ms, {report.other_ms:.3f} ms of it outside PrimFuncs")
    if report.peak:
        top = report.peak
        print(f"the peak of {top.threads} threads here: {top.gflops:.0f} GFLOP/s in fp32, {top.gbps:.1f} GB/s")
