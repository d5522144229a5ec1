"""`relaxc targets`: what can be compiled for, whether it can run here, and what this machine can do at most."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, print_json, size, table
from relaxc.service.cli.progress import StageProgress
from relaxc.service.cli.remote import Remote

if TYPE_CHECKING:
    from relaxc.service.runtime.peak import Peak

__all__ = ["targets"]


def targets(
    context: typer.Context,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure this machine again, whatever was measured before.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the named targets, `auto` (this machine) first, and this machine's measured peaks.

    The peaks are multiply-adds per dtype and bytes per cache level, on one core and on all. They are measured once,
    which takes some seconds on an idle machine, and kept in the cache folder.

    For `auto` and `auto-gpu` it prints what each dtype is multiplied with, by the hardware row, and how many
    multiply-adds that makes a cycle on one core (or SM); --json has that for every target.

    `relaxc --server URL targets` lists the server's, `auto` being its machine.
    """
    from relaxc.service.lowering.instructions import instructions
    from relaxc.service.lowering.target import host_features, listed, missing_features

    remote: Remote = context.obj
    if remote.url is not None:
        remote.refuse(measure=measure)
        _there(remote, json)
        return
    rows = [
        {"target": name, **spec.to_dict(), "missing": missing_features(spec), "instructions": instructions(spec)}
        for name, spec in listed()
    ]
    peaks = _peaks(measure)
    if json:
        print_json({"targets": rows, "peaks": [peak.to_dict() for peak in peaks]})
        return
    _list(rows, "runs here")
    for row in rows:
        if row["target"].startswith("auto"):
            _instructions(row)
    _show(peaks)
    print(f"this CPU has {' '.join(sorted(host_features()))}")


def _there(remote: Remote, json: bool) -> None:
    with remote.client() as client:
        rows = client.targets()
    if json:
        print_json({"targets": rows})
    else:
        _list(rows, "runs there")


def _list(rows: list[dict[str, Any]], runs_where: str) -> None:
    shown = table("", "target", "is", "vector bits", "cores", runs_where, numbers=("vector bits", "cores"))
    for row in rows:
        cpu = row["host"] or row
        runs = "yes" if not row["missing"] else f"no: {row['missing'][0]}" + ", …" * (len(row["missing"]) > 1)
        shown.add_row(row["target"], row["arch"] or row["name"], str(cpu["vector_bits"]), str(cpu["cores"]), runs)
    console().print(shown)


def _instructions(row: dict[str, Any]) -> None:
    """One line a dtype; without an intrinsic the operands are widened first."""
    columns = ("operands", "sums", "instruction", "m x n x k", "a cycle")
    where = "SM" if row["arch"] else "core"
    shown = table(f"{row['target']} multiplies, on each {where}", *columns, numbers=columns[3:])
    for dot in row["instructions"]:
        operands = " x ".join(dict.fromkeys(dot["operands"]))
        name = dot["intrinsic"] or "widened, multiplied and added"
        shape = f"{dot['m']} x {dot['n']} x {dot['k']}"
        shown.add_row(operands, dot["accumulate"], name, shape, f"{dot['multiply_adds']:g}")
    console().print(shown)


def _peaks(again: bool) -> list[Peak]:
    """Of one core and of all; torch is kept out, which `import tvm` would load."""
    if "tvm" not in sys.modules:
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # the mark of a module that is not there
    from relaxc.service import machine
    from relaxc.service.runtime.peak import peak

    with StageProgress() as progress:
        counts = sorted({1, machine.cpu().cores})
        return [peak(threads, again=again, progress=_Probes(progress, threads)) for threads in counts]


class _Probes:
    """Shows how many of the probes have run, from the first on: what is on record is shown without."""

    def __init__(self, emit: StageProgress, threads: int) -> None:
        self.emit = emit
        self.stage = f"measuring {_threads(threads)}"
        self.started = time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        if done == 0:
            self.emit({"event": "stage", "stage": self.stage, "state": "start"})
        self.emit({"event": "progress", "done": done, "total": total})
        if done == total:
            seconds = time.perf_counter() - self.started
            self.emit({"event": "stage", "stage": self.stage, "state": "done", "seconds": seconds})


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _show(peaks: list[Peak]) -> None:
    columns = [_threads(peak.threads) for peak in peaks]
    shown = table(f"this machine: {peaks[0].machine}", "", "holds", *columns, numbers=("holds", *columns))
    shown.add_row("fp32 multiply-adds", "", *(f"{peak.gflops:.0f} GFLOP/s" for peak in peaks))
    for dtype in peaks[0].products:
        unit = "GFLOP/s" if "float" in dtype else "GOP/s"
        shown.add_row(f"{dtype} multiply-adds", "", *(f"{peak.products.get(dtype, 0.0):.0f} {unit}" for peak in peaks))
    for index, level in enumerate(peaks[0].levels):
        holds = "" if level.size_bytes is None else size(level.size_bytes)
        rates = [(peak.levels[index].read_gbps, peak.levels[index].copy_gbps) for peak in peaks]
        shown.add_row(
            f"{level.name}: read, copied", holds, *(f"{read:.1f}, {copied:.1f} GB/s" for read, copied in rates)
        )
    console().print(shown)
    if not all(peak.alone for peak in peaks):
        print("other processes were running meanwhile: it reaches more, and is measured again next time")
