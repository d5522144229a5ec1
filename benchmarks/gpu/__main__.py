"""`python -m benchmarks.gpu build|measure|table|random FOLDER`: made anywhere, measured on a GPU machine, and shown.

`build` needs nvcc and no GPU. `measure` needs a GPU, torch and TVM's runtime libraries; cut off, it goes on where it
stopped when it is called again with its results. `random` compiles and checks random kernels, and needs all of these.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.gpu.fuzz.command import add_arguments, random_kernels
from benchmarks.gpu.manifest import read_manifest, read_results


def main() -> int:
    """Build, measure or show; status 1 where a number is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    built = verbs.add_parser("build", help="compile models and kernels for sm_90a into FOLDER")
    built.add_argument("folder", type=Path)
    built.add_argument(
        "--suite", action="append", default=[], help="model, attention, conv, gemm, groups, moves or rows; all without"
    )
    built.add_argument("--model", action="append", default=[], help="of the models, those; all without")
    built.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile kernels")
    built.add_argument("--trust", action="store_true", help="models with what no GPU has run yet; a folder of its own")
    measured = verbs.add_parser("measure", help="check and time what FOLDER's results lack, the most important first")
    measured.add_argument("folder", type=Path)
    measured.add_argument("--out", type=Path, help="where results.jsonl goes; FOLDER without")
    measured.add_argument("--budget", type=float, default=560.0, help="seconds in all")
    measured.add_argument("--workers", type=int, default=4, help="children that prepare at a time")
    measured.add_argument("--only", default="", help="the beginning of an entry's id: model/resnet50, attention")
    measured.add_argument("--retry", action="store_true", help="also what failed before")
    shown = verbs.add_parser("table", help="print the tables of docs/benchmarks.md")
    shown.add_argument("folder", type=Path)
    shown.add_argument("--out", type=Path, help="where results.jsonl is; FOLDER without")
    add_arguments(verbs.add_parser("random", help="compile random kernels, and compare them with fp64 references"))
    args = parser.parse_args()
    return {"build": _build, "measure": _measure, "table": _table, "random": random_kernels}[args.verb](args)


def _build(args: argparse.Namespace) -> int:
    from benchmarks.gpu.build import build

    entries = build(args.folder, suites=args.suite, models=args.model, jobs=args.jobs, trust=args.trust)
    size = sum(path.stat().st_size for path in args.folder.rglob("*") if path.is_file())
    print(f"{len(entries)} entries, {size / (1 << 20):.1f} MiB")
    return 0


def _measure(args: argparse.Namespace) -> int:
    from benchmarks.gpu.measure import measure

    out = args.out or args.folder
    rows = measure(
        args.folder, out, budget_s=args.budget, workers=args.workers, only=args.only, retry=args.retry
    )  # fmt: skip
    return int(any("failed" in row or not row.get("right", True) for row in rows))


def _table(args: argparse.Namespace) -> int:
    from benchmarks.gpu.table import tables

    _, entries = read_manifest(args.folder)
    print(tables(entries, read_results(*dict.fromkeys((args.folder, args.out or args.folder)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
