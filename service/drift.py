"""Measure again what records say: whether they gain here what they gained, and whether they still beat untuned.

Machines of one kind of CPU differ in speed by a factor of two, by their clock, their neighbours and their memory. A
record chooses parameters, and that choice holds where it gains as much over the untuned kernel as it did.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from relaxc.service.compiling.stages import Stages
from relaxc.service.errors import MachineMismatch
from relaxc.service.process.task import Emit
from relaxc.service.records.record import Record, RecordTarget, Workload
from relaxc.service.request import CompileRequest
from relaxc.service.tuner import find_tasks
from relaxc.service.tuning.generic import recorded
from relaxc.service.tuning.task import Task

__all__ = ["DRIFT", "Drift", "run"]

DRIFT = 0.2
"""The part of a record's gain by which another one counts as drift: more than this between days is no noise."""

_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class Drift:
    """One record measured again, in turn with the untuned kernel.

    `gain` is the untuned kernel's time over its own. `verdict`: `holds`; `drifted` (it gains over 20 % more or less
    than the record says; of a record without a gain, its time counts); `slower` (than untuned, by more than the spread
    of both); or why there is no time: `crashed`, `wrong`, ….
    """

    record: str
    workload: str
    function: str
    rule: str
    shapes: str
    recorded_s: float
    seconds: float | None
    recorded_untuned_s: float | None
    untuned_s: float | None
    recorded_gain: float | None
    gain: float | None
    spread: float
    verdict: str
    detail: str = ""


def run(request: CompileRequest, workdir: Path, emit: Emit, *, sample: int, seed: int) -> None:
    """Measure up to `sample` records that a compile of `request` uses, drawn by `seed`.

    The `result` event has a Drift row each under `measured`, how many records there are under `records`, whether the
    machine was too loud to be believed under `loud`, and under `machine` how many times as long as there the untuned
    kernels take here, in the median. Raise MachineMismatch where this machine is not the target's.
    """
    from relaxc.service.lowering.target import missing_features
    from relaxc.service.records.sources import records_for

    request.target.single("a measurement")
    if lacking := missing_features(request.target):
        raise MachineMismatch(f"this machine cannot measure for {request.target.name}: {'; '.join(lacking)}")
    stage = Stages(emit)
    in_force = records_for(request.target, request.options)
    target = RecordTarget.of(request.target)
    pairs = []
    for task in find_tasks(request, stage).tasks:
        found = in_force.lookup(Workload(task.workload, task.dtype, task.shapes), target)
        known = {(how.rule, how.version) for how in (task, task.untuned, *task.templates) if how is not None}
        same = (one for one in found if (one.rule, one.version) in known and one.threads == request.target.cores)
        pairs += [(task, one) for one in same][:1]
    chosen = random.Random(seed).sample(pairs, min(sample, len(pairs)))
    with stage("measure"):
        rows, loud = _measure(request, chosen, workdir, emit)
    measured = [asdict(row) for row in rows]
    result = {"records": len(pairs), "measured": measured, "loud": loud, "machine": _machine(rows)}
    emit({"event": "result", **result, "stages": stage.seconds})


def _machine(rows: list[Drift]) -> float | None:
    times = [
        row.untuned_s / row.recorded_untuned_s
        for row in rows
        if row.untuned_s is not None and row.recorded_untuned_s is not None
    ]
    return median(times) if times else None


def _measure(
    request: CompileRequest, chosen: list[tuple[Task, Record]], workdir: Path, emit: Emit
) -> tuple[list[Drift], bool]:
    from relaxc.service.tuning.measure.measurer import Measurer

    rows, loud = [], False
    with Measurer(request.target, threads=request.target.cores, builders=1) as measurer:
        for task, record in chosen:
            rows.append(_row(task, record, measurer))
            loud = loud or measurer.noise.loud
            emit({"event": "progress", "stage": "measure", "done": len(rows), "total": len(chosen)})
    return rows, loud


def _row(task: Task, record: Record, measurer: Any) -> Drift:
    task, point = recorded(task, record)
    again, untuned = measurer.compare(task, [point], rounds=_ROUNDS)
    verdict, gain = again.kind, None
    if again.seconds is not None:
        gain = None if untuned.seconds is None else untuned.seconds / again.seconds
        verdict = _verdict(record, again.seconds, gain, again.spread + untuned.spread)
    return Drift(
        record=record.digest,
        workload=record.workload,
        function=task.name,
        rule=record.rule,
        shapes=record.shapes,
        recorded_s=record.seconds,
        seconds=again.seconds,
        recorded_untuned_s=record.untuned_s,
        untuned_s=untuned.seconds,
        recorded_gain=record.gain,
        gain=gain,
        spread=again.spread,
        verdict=verdict,
        detail=again.detail or "the machine was loud" * again.loud,
    )


def _verdict(record: Record, seconds: float, gain: float | None, spread: float) -> str:
    if gain is not None and gain * (1 + spread) < 1:
        return "slower"
    drift = record.seconds / seconds if gain is None or record.gain is None else gain / record.gain
    return "holds" if abs(drift - 1) <= DRIFT else "drifted"
