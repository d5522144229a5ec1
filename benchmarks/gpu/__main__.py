"""`python -m benchmarks.gpu build|measure|table|random|open|tasks|tune FOLDER`: made anywhere, measured where a GPU is.

`build` needs nvcc and no GPU. `measure` needs a GPU, torch and TVM's runtime libraries; cut off, it goes on where it
stopped when it is called again with its results. `random` compiles and checks random kernels, and needs all of these;
`open` compiles and times random networks beside torch.compile, and needs them too.
`tasks` finds what there is to tune in the models, and needs torch alone; `tune` tunes it on the GPU machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.gpu.fuzz.command import add_arguments, random_kernels
from benchmarks.gpu.manifest import read_manifest, read_results
from benchmarks.gpu.open.run import add_arguments as add_open_arguments
from benchmarks.gpu.open.run import open_networks
from benchmarks.gpu.plan import CASES


def main() -> int:
    """Build, measure or show; status 1 where a number is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    built = verbs.add_parser("build", help="compile models and kernels for sm_90a into FOLDER")
    built.add_argument("folder", type=Path)
    suites = f"model, drawn, {', '.join(CASES)}; all without"
    built.add_argument("--suite", action="append", default=[], help=suites)
    built.add_argument("--model", action="append", default=[], help="of the models, those; all without")
    built.add_argument("--target", default="", help="kernels and models for it: cuda-sm80 or cuda-sm90")
    built.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile kernels")
    measured = verbs.add_parser("measure", help="check and time what FOLDER's results lack, the most important first")
    measured.add_argument("folder", type=Path)
    measured.add_argument("--out", type=Path, help="where results.jsonl goes; FOLDER without")
    measured.add_argument("--budget", type=float, default=560.0, help="seconds in all")
    measured.add_argument("--workers", type=int, default=4, help="children that prepare at a time")
    measured.add_argument("--only", default="", help="the beginning of an entry's id: model/resnet50, attention")
    measured.add_argument("--retry", action="store_true", help="also what failed before")
    shown = verbs.add_parser("table", help="print the tables of docs/benchmarks_gpu.md")
    shown.add_argument("folder", type=Path)
    shown.add_argument("--out", type=Path, help="where results.jsonl is; FOLDER without")
    add_arguments(verbs.add_parser("random", help="compile random kernels, and compare them with fp64 references"))
    add_open_arguments(verbs.add_parser("open", help="time drawn networks beside torch.compile"))
    found = verbs.add_parser("tasks", help="write the tasks of the models into FOLDER")
    found.add_argument("folder", type=Path)
    tuned = verbs.add_parser("tune", help="tune FOLDER's tasks, the most important first, and confirm what won")
    tuned.add_argument("folder", type=Path)
    tuned.add_argument("--out", type=Path, required=True, help="where records and logs go")
    tuned.add_argument("--budget", type=float, default=500.0, help="seconds in all")
    tuned.add_argument("--processes", type=int, default=3, help="tunings that take turns on the GPU")
    tuned.add_argument("--trials", type=int, default=64, help="trials a task on average")
    args = parser.parse_args()
    verbs_by_name = {
        "build": _build, "measure": _measure, "table": _table, "random": random_kernels, "open": open_networks,
        "tasks": _tasks, "tune": _tune,
    }  # fmt: skip
    return verbs_by_name[args.verb](args)


def _build(args: argparse.Namespace) -> int:
    from benchmarks.gpu.build import build

    entries = build(args.folder, suites=args.suite, models=args.model, target=args.target, jobs=args.jobs)
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


def _tasks(args: argparse.Namespace) -> int:
    from benchmarks.gpu.tune_tasks import collect

    found = collect(args.folder)
    print(f"{len(found)} tasks, {sum(one.task.size for one in found)} points")
    return 0


def _tune(args: argparse.Namespace) -> int:
    from benchmarks.gpu.tune_run import tune

    return tune(args.folder, args.out, budget_s=args.budget, processes=args.processes, trials=args.trials)


if __name__ == "__main__":
    sys.exit(main())
