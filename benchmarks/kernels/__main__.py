"""Times single operators of real networks, compiled as a model is, beside what this machine reaches at most.

    python -m benchmarks.kernels                    all families, on one thread and on all
    python -m benchmarks.kernels gemm conv --only 3x3 --threads 2

The limit is the arithmetic at the measured peak or the bytes from the cache that holds them (see `relaxc targets`),
whichever takes longer; an operator that bytes bound is also run on tensors that come from memory each time. Results are
compared with torch's first.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.kernels.cases import FAMILIES, Case, cases
from benchmarks.kernels.compiled import Compiled, compile_op
from benchmarks.kernels.timing import Row, measure
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir.dtypes import is_float
from relaxc.service.dump import Dump, DumpFolder, no_dump
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes.common.constants import numpy_dtype
from relaxc.service.runtime.peak import Peak, peak
from relaxc.service.runtime.threads import default_threads

TOLERANCE = 2e-5
"""Of the largest value of the result: sums are made in another order."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this")
    parser.add_argument("--threads", type=int, nargs="+", help="by default 1 and all")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each case and number of threads")
    parser.add_argument("--measure", action="store_true", help="measure the machine's peak again first")
    parser.add_argument("--out", type=Path, help="file for the JSON lines as well")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write what each stage saw, a folder for each case")
    return parser


def run(case: Case, peaks: list[Peak], seconds: float, dump: Dump = no_dump) -> list[Row]:
    """The case compiled, compared with torch, and timed. AssertionError where its numbers are wrong."""
    rng = np.random.default_rng(0)
    inputs, weights = (
        [_drawn(rng, shape, dtype) for shape in shapes]
        for shapes, dtype in zip((case.inputs, case.weights), case.operands, strict=True)
    )
    compiled = compile_op(case.relax, inputs, weights, dump=dump)
    _check(case, compiled, [*inputs, *weights])
    return [row for one in peaks for row in measure(case, compiled, _peak_of(case, one), seconds=seconds)]


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if is_float(dtype):
        return rng.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype))
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def _peak_of(case: Case, found: Peak) -> Peak:
    """The measured peak of float32, times how much more the operands' instruction does in a cycle."""
    cpu = cpu_of(to_tvm(resolve("auto")))
    return replace(found, gflops=found.gflops * cpu.dot(case.operands).rate / cpu.dot("float32").rate)


def _check(case: Case, compiled: Compiled, arrays: list[np.ndarray]) -> None:
    import torch

    wide = [array.astype("float32") if case.operands[0] == "bfloat16" else array for array in arrays]
    want = case.torch(*map(torch.from_numpy, wide)).numpy()
    (got,) = compiled.outputs
    scale = max(1e-6, float(np.abs(want).max()))
    error = float(np.abs(got - want).max()) / scale
    assert got.shape == want.shape, f"{case.label}: {got.shape}, torch has {want.shape}"
    assert error <= TOLERANCE, f"{case.label}: off by {error:.2g} of the largest value"


def table_of(family: str, rows: list[Row]) -> Table:
    """The rows of a family."""
    numbers = ("threads", "ms", "limit", "of limit", "GFLOP/s", "GB/s")
    table = Table(title=family, title_justify="left")
    for head in ("", "from", *numbers, "bound by", "rule and parameters"):
        table.add_column(head, justify="right" if head in numbers else "left", overflow="fold")
    for row in rows:
        gflops = "" if row.gflops is None else f"{row.gflops:.1f}"
        times = [
            str(row.threads),
            f"{row.ms:.4f}",
            f"{row.limit_ms:.4f}",
            f"{row.of_limit:.0%}",
            gflops,
            f"{row.gbps:.1f}",
        ]
        table.add_row(escape(row.case), "memory" if row.cold else "caches", *times, row.bound, _rules(row))
    return table


def _rules(row: Row) -> str:
    named = []
    for kernel in row.kernels:
        parameters = " ".join(f"{name}={value}" for name, value in kernel["parameters"].items())
        named.append(f"{kernel['rule'].removeprefix('cpu.')} {parameters}".strip())
    return escape("; ".join(named))


def _dump(folder: Path | None, case: Case) -> Dump:
    return no_dump if folder is None else DumpFolder(folder / re.sub(r"[^\w.]+", "-", f"{case.family}-{case.label}"))


def _rows(wanted: list[Case], peaks: list[Peak], arguments: argparse.Namespace, console: Console) -> Iterator[Row]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(wanted))
        rows: list[Row] = []
        for case, after in zip(wanted, [*wanted[1:], None], strict=True):
            progress.update(bar, description=escape(f"{case.family} {case.label}"), refresh=True)
            found = run(case, peaks, arguments.seconds, _dump(arguments.dump, case))
            yield from found
            rows += found
            progress.update(bar, advance=1, refresh=True)
            if after is None or after.family != case.family:
                console.print(table_of(case.family, rows))
                rows = []


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    unknown = [family for family in arguments.families if family not in FAMILIES]
    if unknown:
        parser.error(f"there is no family {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    threads = arguments.threads or sorted({1, default_threads()})
    peaks = [peak(count, again=arguments.measure) for count in threads]
    if not all(one.alone for one in peaks):
        console.print("[yellow]The peak was measured on a busy machine, so the limits are too low.")
    wanted = [case for case in cases(arguments.families) if arguments.only in case.label]
    if not wanted:
        parser.error(f"no case has {arguments.only!r} in its name")
    lines = []
    for row in _rows(wanted, peaks, arguments, console):
        lines.append(json.dumps(row.to_dict()))
        print(lines[-1], flush=True)
        if arguments.out:
            arguments.out.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
