"""Measure again what records say: whether their times hold here, and whether they still beat untuned."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from service.compiler import Stages
from service.errors import MachineMismatch
from service.process.task import Emit
from service.records.record import Record, RecordTarget, Workload
from service.request import CompileRequest
from service.tuner import find_tasks
from service.tuning.generic import recorded
from service.tuning.task import Task

__all__ = ["DRIFT", "Drift", "run"]

DRIFT = 0.2
"""The part of a record's time by which another one counts as drift: more than this between days is no noise."""

_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class Drift:
    """One record measured again, in turn with the untuned kernel.

    `verdict`: `holds`; `drifted` (it takes over 20 % more or less than the record says, and still beats untuned);
    `slower` (than untuned, by more than the spread of both); or why there is no time: `crashed`, `wrong`, ….
    """

    record: str
    workload: str
    function: str
    rule: str
    shapes: str
    recorded_s: float
    seconds: float | None
    untuned_s: float | None
    spread: float
    verdict: str
    detail: str = ""


def run(request: CompileRequest, workdir: Path, emit: Emit, *, sample: int, seed: int) -> None:
    """Measure up to `sample` records that a compile of `request` uses, drawn by `seed`.

    The `result` event has a Drift row each under `measured`, how many records there are under `records`, and whether
    the machine was too loud to be believed under `loud`. Raise MachineMismatch where this machine is not the target's.
    """
    from service.lowering.target import missing_features
    from service.records.sources import records_for

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
    emit({"event": "result", "records": len(pairs), "measured": measured, "loud": loud, "stages": stage.seconds})


def _measure(
    request: CompileRequest, chosen: list[tuple[Task, Record]], workdir: Path, emit: Emit
) -> tuple[list[Drift], bool]:
    from service.tuning.measure.measurer import Measurer

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
    verdict = again.kind
    if again.seconds is not None:
        verdict = _verdict(record.seconds, again.seconds, untuned.seconds, again.spread + untuned.spread)
    return Drift(
        record=record.digest,
        workload=record.workload,
        function=task.name,
        rule=record.rule,
        shapes=record.shapes,
        recorded_s=record.seconds,
        seconds=again.seconds,
        untuned_s=untuned.seconds,
        spread=again.spread,
        verdict=verdict,
        detail=again.detail or "the machine was loud" * again.loud,
    )


def _verdict(recorded_s: float, seconds: float, untuned_s: float | None, spread: float) -> str:
    if untuned_s is not None and seconds > untuned_s * (1 + spread):
        return "slower"
    return "drifted" if abs(seconds / recorded_s - 1) > DRIFT else "holds"
