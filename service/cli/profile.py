"""`relaxc profile`: where an artifact's time goes, by PrimFunc."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relaxc.service.cli.arrays import replacing
from relaxc.service.cli.options import Artifact, Json, Seed, Threads, Verbose
from relaxc.service.cli.output import bar, print_json, print_lines
from relaxc.service.cli.report import nodes
from relaxc.service.cli.session import Dims, Inputs, choose_inputs, open_session

if TYPE_CHECKING:
    from relaxc.service.runtime.gpu_peak import GpuPeak
    from relaxc.service.runtime.peak import Peak
    from relaxc.service.runtime.profile import FunctionRow, ProfileReport

__all__ = ["profile"]

_TEXTS = ("kernel", "PrimFunc", "", "bound by", "scheduled by", "parameters")
_BAR = 8


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
    """Show the time of each kernel beside the least that this machine could take for it, the largest loss first.

    The limit is the time for its arithmetic at this machine's peak, or for reading its bytes from the cache that holds
    them, whichever is longer (`bound by`). FLOPs and bytes are per call; times and limits are for all calls. Peaks are
    measured once, as by `relaxc targets`, with the instructions of the artifact's target, and kept in the cache folder.
    A wider terminal shows more columns; --json has all.

    On a GPU each kernel is timed by events on the device, in the CUDA graph that a run launches, and the peaks are its
    data sheet's.
    """
    import json as text

    session = open_session(artifact, threads, with_compiler=True)  # the peak's probes are compiled
    from relaxc.service.runtime.profile import profile

    report = profile(session, choose_inputs(session.signature, inputs, dim, seed, fill=True), runs=runs)
    if trace:
        with replacing(trace) as temporary:
            temporary.write_text(text.dumps(report.trace()))
    if json:
        print_json({"artifact": str(artifact), "threads": session.threads, **report.to_dict()})
    else:
        _show(report)


def _show(report: ProfileReport) -> None:
    print_lines([_cells(row) for row in report.functions], texts=_TEXTS)
    lost = sum(max(0.0, row.lost_ms or 0.0) for row in report.functions)
    print(f"\na run takes {report.total_ms:.3f} ms, {report.other_ms:.3f} ms of it outside PrimFuncs")
    if report.peak:
        print(f"PrimFuncs lose {lost:.3f} ms to their limits: {_limits(report.peak)}")
    beyond = sum((row.of_limit or 0.0) > 1.0 for row in report.functions)
    if beyond:
        print(f"{beyond} ran faster than the measured peaks allow and are shown at 100%; --json has the ratios")
    if report.tensor_share:
        print(f"{report.tensor_share:.0%} of their time is in kernels of tensor cores or dot-product instructions")


def _cells(row: FunctionRow) -> dict[str, str]:
    """By column, those first that a narrow terminal has too. A kernel is at its limit at most: peaks are measured."""
    by = row.rule or "" if row.source in ("rule", None) else f"{row.rule} ({row.source})"
    return {
        "kernel": nodes(row.nodes) or row.function,
        "ms": f"{row.time_ms:.3f}",
        "share": f"{row.share:.1%}",
        "": bar(row.share, _BAR),
        "of limit": "" if row.of_limit is None else f"{min(1.0, row.of_limit):.0%}",
        "lost ms": "" if row.lost_ms is None else f"{max(0.0, row.lost_ms):.3f}",
        "bound by": row.bound or "",
        "scheduled by": by,
        "PrimFunc": row.function,
        "calls": str(row.calls),
        "GFLOP/s": _scaled(row.gflops, 1),
        "GB/s": _scaled(row.gbps, 1),
        "limit ms": "" if row.limit_ms is None else f"{row.limit_ms:.3f}",
        "MFLOP": _scaled(row.flops, 1e6),
        "KiB": _scaled(row.bytes, 1024),
        "parameters": " ".join(f"{name}={value}" for name, value in row.parameters.items()),
    }


def _scaled(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:.1f}"


def _limits(top: Peak | GpuPeak) -> str:
    from relaxc.service.runtime.peak import Peak

    caches = ", ".join(f"{level.name} {level.read_gbps:.0f} GB/s" for level in top.levels)
    if not isinstance(top, Peak):
        reached = ", ".join(f"{dtype} {gflops / 1e3:.0f}" for dtype, gflops in top.by_dtype.items())
        return f"{top.machine} by its {top.source}: TFLOP/s of {reached}; {caches}"
    busy = "" if top.alone else " (measured while other processes were running)"
    by = f" with {' '.join(top.instructions)}" if top.instructions else ""
    others = "".join(f", {rate:.0f} of {dtype}" for dtype, rate in top.products.items())
    return f"{top.threads} threads reach {top.gflops:.0f} GFLOP/s in fp32{others}{by}; {caches}{busy}"
