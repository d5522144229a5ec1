"""Upstream's MetaSchedule on one case, as its documentation has it: LocalBuilder, LocalRunner, its generic space.

    python -m benchmarks.tuning.upstream CASE --trials 256 --out DIR

It gets the PrimFunc that TVM's own pipeline makes of the operator: plain layouts, nothing packed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from benchmarks.tuning.cases import Case, module_of, shapes_of
from benchmarks.tuning.curve import Curve
from benchmarks.tuning.side import run_side
from relaxc.service.lowering.target import resolve, to_tvm

__all__ = ["prim_func_of", "tune"]

SYMBOL = "main"
_PER_ITERATION = 64
"""Upstream's default."""


def prim_func_of(case: Case) -> Any:
    """The fused PrimFunc of the operator, as TVM's default CPU pipeline has it before it is scheduled."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    module = tvm.ir.transform.Sequential(passes)(module_of(case))
    functions = [func for _, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert len(functions) == 1, f"{case.name} became {len(functions)} PrimFuncs"
    return functions[0].with_attr("global_symbol", SYMBOL)


@derived_object
class _Watch(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]  # tvm has no types
    """Notes each result of a batch, and when the batch ended."""

    def __init__(self) -> None:
        super().__init__()
        self.start = time.perf_counter()
        self.trials = 0
        self.best = float("inf")
        self.steps: list[tuple[int, float, float]] = []

    def apply(self, task_scheduler: Any, task_id: int, candidates: Any, builds: Any, runs: Any) -> None:
        """See PyMeasureCallback."""
        now = time.perf_counter() - self.start
        for build, run in zip(builds, runs, strict=True):
            self.trials += 1
            if error := build.error_msg or run.error_msg:
                print(f"trial {self.trials} failed: {str(error).strip().splitlines()[-1][:300]}", flush=True)
            times = [float(value) for value in run.run_secs or ()]
            if times and sum(times) / len(times) < self.best:
                self.best = sum(times) / len(times)
                self.steps.append((self.trials, now, self.best))
        print(f"{self.trials} trials, {now:.0f} s, best {self.best * 1e3:.4f} ms", flush=True)


def tune(case: Case, out: Path, trials: int, seed: int = 0) -> Curve:
    """Tunes the case and leaves the best kernel in `out`."""
    target, func = to_tvm(resolve("auto")), prim_func_of(case)
    watch = _Watch()
    folder = out / f"{case.name}.upstream"
    folder.mkdir(parents=True, exist_ok=True)
    defaults = list(ms.measure_callback.MeasureCallback.create("default"))
    database = ms.tune_tir(
        func,
        target,
        str(folder),
        trials,
        num_trials_per_iter=min(_PER_ITERATION, trials),
        measure_callbacks=[*defaults, watch],
        seed=seed,
    )
    seconds = time.perf_counter() - watch.start
    schedule = ms.tir_integration.compile_tir(database, func, target)
    assert schedule is not None, f"{case.name}: upstream found nothing"
    library = out / f"{case.name}.upstream.so"
    tvm.tirx.build(schedule.mod, target).export_library(str(library))
    steps = (*watch.steps, (watch.trials, seconds, watch.best))
    return Curve(case.name, "upstream", watch.trials, seconds, steps, str(library), SYMBOL, shapes_of(func))


def main() -> None:
    """Runs the command line."""
    run_side("upstream", __doc__, tune, trials=256)


if __name__ == "__main__":
    main()
