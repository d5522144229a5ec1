"""One case: its files prepared, its runtimes loaded side by side, and timed in turns."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cases import Case
from benchmarks.peers.isa import avx512_share, keeps_to_avx2
from benchmarks.peers.report import CaseReport, Row, percentiles, ratio_to_best
from benchmarks.peers.runtimes import OURS, counts, runtime
from benchmarks.peers.workers import Failed, Worker, ask_once

__all__ = ["Plan", "measure", "prepare"]

_WARM_RUNS = 2
"""Before the timed runs of a turn: the other runtimes' data is in the caches then."""
_MIN_RUNS = 3
_SAMPLED_MS = 700.0


@dataclass(frozen=True)
class Plan:
    """How to measure: `rounds` turns of about `turn_s` seconds for each runtime."""

    runtimes: Sequence[str]
    threads: int = 2
    rounds: int = 10
    turn_s: float = 0.4
    seed: int = 0


def prepare(
    case: Case, folder: Path, plan: Plan, step: Callable[[str], None] = lambda what: None
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The case exported and compiled for every runtime that takes it, and what the others said instead.

    What is in the folder already is kept. Failed goes up where ours cannot compile it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    step("export")
    ask_once("export", "", case, folder, plan.threads)
    failed: dict[str, str] = {}
    prepared: dict[str, dict[str, Any]] = {}
    for name in plan.runtimes:
        step(f"compile {name}")
        if runtime(name).supports(case):
            with _noted(name, failed):
                prepared[name] = ask_once("prepare", name, case, folder, plan.threads)
    return prepared, failed


def measure(case: Case, folder: Path, plan: Plan, step: Callable[[str], None] = lambda what: None) -> CaseReport:
    """Prepares and times one case. `step` is told what begins: the preparations, the loads and the rounds.

    A runtime that cannot take the model is left out, with what it said; Failed goes up where that one is ours.
    """
    prepared, failed = prepare(case, folder, plan, step)
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        ready: dict[str, dict[str, Any]] = {}
        for name in prepared:
            step(f"load {name}")
            worker = stack.enter_context(Worker("serve", name, case, folder, plan.threads))
            with _noted(name, failed):
                ready[name], workers[name] = worker.answer(), worker
                worker.stop()
        times = _rounds(workers, plan, step)
        if case.target is not None:
            for name, worker in workers.items():
                step(f"instructions of {name}")
                share = avx512_share(
                    worker.pid, partial(worker.ask, do="run", warm=0, runs=_sampled(times[name])), folder
                )
                prepared[name]["facts"]["avx512_share"] = share
        memory = {name: worker.ask(do="memory") for name, worker in workers.items()}
        outputs = {name: _outputs(worker, folder) for name, worker in workers.items()}
    rows = [_row(name, case, times[name], prepared[name], ready[name], memory[name], outputs) for name in workers]
    medians = {row.runtime: row.rounds_ms for row in rows}
    ratio = ratio_to_best(OURS, medians, [row.runtime for row in rows if row.counts])
    return CaseReport(case.label, case.is_batched, plan.threads, tuple(rows), ratio, failed)


def _sampled(turns: list[list[float]]) -> int:
    """How many runs a sampler is to see."""
    return max(_MIN_RUNS, math.ceil(_SAMPLED_MS / float(np.median([time for turn in turns for time in turn]))))


@contextmanager
def _noted(name: str, failed: dict[str, str]) -> Iterator[None]:
    """What a peer says that cannot take the model; ours must."""
    try:
        yield
    except Failed as error:
        if name == OURS:
            raise
        failed[name] = str(error)


def _rounds(workers: Mapping[str, Worker], plan: Plan, step: Callable[[str], None]) -> dict[str, list[list[float]]]:
    """The times of each turn of each runtime, in an order drawn anew each round."""
    times: dict[str, list[list[float]]] = {name: [] for name in workers}
    runs: dict[str, int] = {}
    for name, worker in workers.items():
        once = float(np.median(worker.ask(do="run", warm=_WARM_RUNS, runs=_MIN_RUNS)["ms"]))
        runs[name] = max(_MIN_RUNS, math.ceil(plan.turn_s * 1e3 / once))
    order, rng = list(workers), random.Random(plan.seed)
    for index in range(plan.rounds):
        step(f"round {index + 1} of {plan.rounds}")
        rng.shuffle(order)
        for name in order:
            times[name].append(workers[name].ask(do="run", warm=_WARM_RUNS, runs=runs[name])["ms"])
    return times


def _outputs(worker: Worker, folder: Path) -> list[Any]:
    path = folder / f"{worker.name}-outputs.npz"
    worker.ask(do="outputs", path=str(path))
    with np.load(path) as file:
        return [file[name] for name in file.files]


def _row(
    name: str,
    case: Case,
    turns: list[list[float]],
    prepared: Mapping[str, Any],
    ready: Mapping[str, Any],
    memory: Mapping[str, Any],
    outputs: Mapping[str, list[Any]],
) -> Row:
    p10, median, p90 = percentiles(time for turn in turns for time in turn)
    error, agrees = (None, None) if name == OURS or OURS not in outputs else _agreement(outputs[OURS], outputs[name])
    return Row(
        runtime=name,
        version=ready["version"],
        counts=counts(name, case) and keeps_to_avx2(prepared["facts"].get("avx512_share")),
        rounds_ms=tuple(percentiles(turn)[1] for turn in turns),
        p10_ms=p10,
        median_ms=median,
        p90_ms=p90,
        compile_s=ready["load_s"] if prepared["compile_s"] is None else prepared["compile_s"],
        load_s=ready["load_s"],
        size_bytes=prepared["size_bytes"],
        peak_bytes=memory["peak_bytes"] if ready["forgets_peak"] else ready["load_peak_bytes"],
        load_peak_bytes=ready["load_peak_bytes"],
        error=error,
        agrees=agrees,
        facts=prepared["facts"],
    )


def _agreement(ours: list[Any], theirs: list[Any]) -> tuple[float | None, bool]:
    """The largest scaled error over all outputs, and whether each is within what its dtype allows."""
    from relaxc.service.runtime.compare import compare

    if [a.shape for a in ours] != [a.shape for a in theirs]:
        return None, False
    got, want = ({str(i): array for i, array in enumerate(arrays)} for arrays in (ours, theirs))
    found = compare(got, want, {name: str(array.dtype) for name, array in want.items()})
    errors = [output.scaled_error for output in found.outputs if output.scaled_error is not None]
    return max(errors, default=None), found.passed
