"""relaxc's tuner on one case: the search and the measurement of `relaxc tune`, on the kernel that does the work.

python -m benchmarks.tuning.ours CASE --trials 64 --out DIR
"""

from __future__ import annotations

import time
from pathlib import Path

import tvm

from benchmarks.tuning.cases import Case, module_of, shapes_of
from benchmarks.tuning.curve import Curve
from benchmarks.tuning.side import run_side
from relaxc.service import passes
from relaxc.service.lowering import schedule
from relaxc.service.lowering.build import KERNEL
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.request import CompileOptions
from relaxc.service.runtime.peak import peak
from relaxc.service.runtime.roofline import limit_of
from relaxc.service.runtime.threads import default_threads
from relaxc.service.tuner import tasks_in
from relaxc.service.tuning.journal import Journal
from relaxc.service.tuning.measure import Measurer
from relaxc.service.tuning.measure.builder_worker import build, known_rules
from relaxc.service.tuning.measure.messages import Build, emitted_beside
from relaxc.service.tuning.plan import Budget
from relaxc.service.tuning.run import Candidate, Start, TuningRun
from relaxc.service.tuning.task import Task

__all__ = ["task_of", "tune"]


def task_of(case: Case) -> tuple[Task, float]:
    """The task with the most arithmetic of the case, and its limit in seconds here."""
    spec = resolve("auto")
    optimized = passes.optimize(module_of(case), to_tvm(spec), CompileOptions())
    report = schedule(optimized.module, spec).report
    found = tasks_in(optimized, report, spec)
    task = max(found.tasks, key=lambda task: task.flops)
    written = found.sizes[task.workload].written
    return task, limit_of(peak(default_threads()), task.flops, int(task.bytes), written).ms / 1e3


def tune(case: Case, out: Path, trials: int, seed: int = 0) -> Curve:
    """Tunes the case and leaves the best kernel in `out`."""
    start = time.perf_counter()
    task, limit_s = task_of(case)
    threads = default_threads()
    with (
        Journal(out / f"{case.name}.journal" / "run", resume=False) as journal,
        Measurer(task.target, threads=threads, builders=threads) as measurer,
    ):
        # Without its limit the search goes on where `relaxc tune` stops: the curve and the pace are of more trials.
        run = TuningRun([task], [Start(0.0)], measurer, journal, budget=Budget(trials), seed=seed)
        (done,) = run.run()
    seconds = time.perf_counter() - start
    return _curve(case, done, seconds, limit_s, out)


def _curve(case: Case, done: Candidate, seconds: float, limit_s: float, out: Path) -> Curve:
    assert done.verdict is not None, f"{case.name}: {done.progress.done}"
    task, progress = done.task, done.progress
    library = out / f"{case.name}.ours.so"
    request = Build(task.func_json, task.how(done.verdict.point), str(library), task.group_json, dict(task.operator))
    built = build(request, task.target, known_rules(task.target.kind, ()))
    assert built.kind == "built", built.detail
    beside = emitted_beside(str(library))
    func = tvm.ir.load_json(beside.read_text()) if beside.exists() else task.func()
    steps = (*progress.curve, (progress.trials, seconds, progress.curve[-1][2]))
    shapes = shapes_of(func)
    return Curve(
        case.name, "relaxc", progress.trials, seconds, steps, str(library), KERNEL, shapes, progress.done, limit_s
    )


def main() -> None:
    """Runs the command line."""
    run_side("ours", __doc__, tune, trials=64)


if __name__ == "__main__":
    main()
