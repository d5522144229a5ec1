"""Tunes a model: tasks → search → records. With compiler.py the only page that knows several stages.

`run` does the work in this process and is called in a child by `jobs.tasks`; candidates are built and run in processes
of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service import machine
from service.compiler import Emit, Stages, load_and_schedule
from service.config import settings
from service.dump import no_dump
from service.errors import InvalidOption, MachineMismatch, ToolMissing
from service.request import CompileRequest, TargetSpec, canonical_json
from service.tuning.options import TuneOptions, select
from service.tuning.provenance import Provenance, versions

if TYPE_CHECKING:
    from service.passes import Optimized
    from service.runtime.peak import Peak
    from service.tuning.journal import Journal
    from service.tuning.records import Record, RecordSet
    from service.tuning.run import Candidate, Start
    from service.tuning.task import Task
    from service.tuning.tasks import FoundTasks

__all__ = ["STAGES", "find_tasks", "run", "tasks_in"]

STAGES = ("import", "optimize", "schedule", "peak", "tune", "report")

_NEEDED = ("xgboost", "matplotlib")


def run(request: CompileRequest, options: TuneOptions, workdir: Path, emit: Emit) -> None:
    """Tunes `request` in this process; records are added to `options.into`, or `workdir`/records, as they are won.

    Leaves in `workdir` what the `result` event names: records.jsonl (those of the tasks that were chosen), report.json
    and curve.png. With `list_only` the event has the tasks instead. Raises a RelaxcError, whose `fields["stage"]`
    names the stage.
    """
    _require(request.target, options)
    request = _for_threads(request, options)
    stage = Stages(emit)
    found = find_tasks(request, stage)
    with stage("peak"):
        peak = _peak(request, options)
    if options.list_only:
        emit({"event": "result", "files": [], **_listed(found, peak)})
        return
    session = _Session(request, options, found, peak, workdir, emit)
    with stage("tune"):
        candidates, report = session.tune()
    with stage("report"):
        files = session.write(candidates, report)
    summary = {name: value for name, value in report.items() if name != "tasks"}
    emit({"event": "result", "files": files, "summary": summary, "stages": stage.seconds})


def find_tasks(request: CompileRequest, stage: Stages) -> FoundTasks:
    """What there is to tune in the model, whatever is on record."""
    untuned = replace(request.options, records=(), default_records=False, require_tuned=None)
    made = load_and_schedule(replace(request, options=untuned), stage, no_dump)
    return tasks_in(made.optimized, made.scheduled.report, request.target)


def tasks_in(optimized: Optimized, report: Sequence[Mapping[str, Any]], spec: TargetSpec) -> FoundTasks:
    """The tasks of an optimized model, of which `report` is what `lowering.schedule` says without records."""
    from service.lowering.target import to_tvm
    from service.passes.common.constants import size_bytes
    from service.passes.common.weight_operands import weight_operands
    from service.tuning.measure.builder_worker import known_rules
    from service.tuning.tasks import tasks_of

    return tasks_of(
        optimized.module,
        report,
        Counter(str(name) for name, _ in optimized.report.graph["calls"]),
        spec,
        to_tvm(spec),
        known_rules(spec.kind, ()),
        weight_operands=weight_operands(optimized.module),
        weight_bytes=sum(size_bytes(tensor) for tensor in optimized.weights.values()),
    )


def _require(spec: TargetSpec, options: TuneOptions) -> None:
    """Raises ToolMissing without the extra `tune`, MachineMismatch where this machine cannot run the candidates."""
    from service.lowering.target import missing_features

    for library in _NEEDED:
        if find_spec(library) is None:
            raise ToolMissing(f"{library} is not installed", remedy="pip install 'relaxc[tune]'.", extra="tune")
    if not options.list_only and spec.kind != "llvm":
        raise InvalidOption(
            f"kernels for {spec.name} cannot be tuned: GPU schedules have no parameters to search yet",
            remedy="Compile without tuning.",
            option="target",
        )
    if not options.list_only and options.tracker is None and (lacking := missing_features(spec)):
        raise MachineMismatch(
            f"this machine cannot measure for {spec.name}: {'; '.join(lacking)}",
            remedy="Tune on a machine of that kind, or through one: --rpc-tracker HOST:PORT --rpc-key KEY.",
        )


def _for_threads(request: CompileRequest, options: TuneOptions) -> CompileRequest:
    """The request for as many cores as candidates are timed on: templates divide their work among the target's."""
    from service.runtime.threads import default_threads

    cores = request.target.cores
    threads = options.threads or (cores if options.tracker else min(cores, default_threads()))
    return replace(request, target=replace(request.target, cores=threads))


def _peak(request: CompileRequest, options: TuneOptions) -> Peak | None:
    """What this machine reaches at most; None where candidates run on another one."""
    from service.runtime.peak import peak

    return None if options.tracker else peak(request.target.cores)


def _builders() -> int:
    """As many as there are cores: where candidates are timed on all of them, nothing is built meanwhile."""
    return len(os.sched_getaffinity(0))


def _limit_s(task: Task, found: FoundTasks, peak: Peak | None) -> float:
    """The least seconds that a call can take; 0 where that is not known."""
    from service.runtime.roofline import Far, limit_of

    if peak is None:
        return 0.0
    sizes = found.sizes[task.workload]
    far = Far(sizes.weights, task.weight_bytes)
    return limit_of(peak, task.flops, int(task.bytes), sizes.written, far).ms / 1e3


def _listed(found: FoundTasks, peak: Peak | None) -> dict[str, Any]:
    """The tasks as JSON values. `share` is of all tasks' time, as if each took the least that it can."""
    from math import prod

    limits = [_limit_s(task, found, peak) for task in found.tasks]
    whole = sum(task.weight * limit for task, limit in zip(found.tasks, limits, strict=True))
    rows = [
        {
            **{
                name: getattr(task, name)
                for name in ("name", "workload", "rule", "version", "dtype", "shapes", "weight")
            },
            "flops": task.flops,
            "bytes": task.bytes,
            "points": prod(map(len, task.space.values())),
            "default": dict(task.default),
            "limit_s": limit or None,
            "share": task.weight * limit / whole if whole else None,
        }
        for task, limit in zip(found.tasks, limits, strict=True)
    ]
    skipped = [{"name": one.name, "rule": one.rule, "reason": one.reason} for one in found.untunable]
    return {"tasks": rows, "skipped": skipped}


@dataclass
class _Session:
    """One run: where it starts from, what it measures with, and where it writes."""

    request: CompileRequest
    options: TuneOptions
    found: FoundTasks
    peak: Peak | None
    workdir: Path
    emit: Emit

    def __post_init__(self) -> None:
        from service.tuning.records import RecordTarget

        self.target = RecordTarget.of(self.request.target)
        self.into = Path(self.options.into) if self.options.into else self.workdir / "records"
        self.threads = self.request.target.cores
        host = f"rpc:{self.options.rpc_key}" if self.options.rpc_key else machine.model_name()
        self.provenance = Provenance(self.target, self.threads, self.options.seed, host)

    def tune(self) -> tuple[list[Candidate], dict[str, Any]]:
        """Searches for the tasks that were chosen and have no record, or all chosen ones with `again`."""
        from service.tuning.journal import Journal
        from service.tuning.measure.measurer import Measurer
        from service.tuning.measure.outcome import MeasureLimits, RpcOptions
        from service.tuning.plan import Budget
        from service.tuning.run import TuningRun
        from service.tuning.summary import summarize

        options, tracker = self.options, self.options.tracker
        rpc = None if tracker is None else RpcOptions(*tracker, options.rpc_key)
        with Journal(self.into / ".journal" / self._run_id(), resume=options.resume) as journal:
            tasks, starts, kept = self._starts(journal)
            self.emit({"event": "log", "level": "info", "message": f"{len(tasks)} tasks, {len(kept)} on record"})
            with Measurer(
                self.request.target,
                threads=self.threads,
                builders=_builders(),
                limits=MeasureLimits(quiet_wait_s=settings().tune_quiet_wait_s),
                rpc=rpc,
                folder=self.workdir / "measure",
            ) as measurer:
                tuning = TuningRun(
                    tasks,
                    starts,
                    measurer,
                    journal,
                    budget=Budget(options.trials, options.time_s),
                    seed=options.seed,
                    confirmed=self._record,
                    refused=self._strike,
                    report=self.emit,
                )
                candidates = tuning.run()
        report = summarize(
            candidates, seconds=tuning.elapsed(), measuring_s=tuning.measuring_s, new_trials=tuning.new_trials
        )
        return candidates, {**self._about(), **report, "on_record": [record.to_dict() for record in kept]}

    def _starts(self, journal: Journal) -> tuple[list[Task], list[Start], list[Record]]:
        """The tasks to search for and where each starts from, and the records that make others needless.

        They are noted: a run that is resumed starts from what it started from, not from its own first records.
        """
        from service.lowering.target import to_tvm
        from service.tuning import generic
        from service.tuning.hints import is_finished, standing
        from service.tuning.journal import name_of
        from service.tuning.run import Start

        known, target = self._known(), to_tvm(self.request.target)
        tasks, starts, kept = [], [], []
        for index in select(self.options.tasks, len(self.found.tasks)):
            task = generic.seeded(self.found.tasks[index], target, self.options.seed)
            name = f"start {name_of(task)}"
            if journal.noted(name) is None:
                find = standing if task.untuned is None else generic.standing
                record = find(task, known, self.target, self.threads)
                if record is not None and is_finished(record, task) and not self.options.again:
                    kept.append(record)
                    continue
                journal.note(name, self._start(task, known, record))
            noted = journal.noted(name)
            tasks.append(generic.beginning_with(noted.get("trace", ""), task))
            stands = noted["standing"] and (noted["standing"][0], noted["standing"][1])
            starts.append(Start(_limit_s(task, self.found, self.peak), tuple(noted["hints"]), stands or None))
        return tasks, starts, kept

    def _start(self, task: Task, known: RecordSet, record: Record | None) -> dict[str, Any]:
        from service.tuning.generic import recorded
        from service.tuning.hints import nearest

        hints = [dict(near.parameters) for near in nearest(task, known, self.target)]
        if record is None:
            return {"hints": hints, "standing": None}
        return {"hints": hints, "standing": [recorded(task, record)[1], record.seconds], "trace": record.trace}

    def _known(self) -> RecordSet:
        from service.tuning.record_files import read
        from service.tuning.records import RecordSet

        places = [*map(Path, self.options.records), *([self.into] if self.into.exists() else [])]
        return RecordSet(record for place in places for record in read(place)).for_target(self.target)

    def _run_id(self) -> str:
        """What tells this run from others in the same folder; how long it may go on does not count."""
        options = self.options
        what = {
            "request": {**self.request.to_dict(), "model": self.request.model.digest},
            "options": [options.seed, self.threads, options.rpc_key],
            "versions": versions(),
        }
        return hashlib.sha256(canonical_json(what).encode()).hexdigest()[:16]

    def _strike(self, candidate: Candidate) -> None:
        """Takes the record that a candidate started from or had won out of the folder: its kernel does not run here."""
        from service.tuning.record_files import read, remove

        task = candidate.task
        point = candidate.verdict.point if candidate.verdict else (candidate.start.standing or ({}, 0.0))[0]
        how = task.how(dict(point))
        key = (task.workload, self.target, how.rule, how.version, task.dtype, self.threads)
        found = read(self.into).get(key) if self.into.exists() else None
        if found is not None and (dict(found.parameters), found.trace) == (dict(how.parameters), how.trace):
            remove(self.into, [found])
            message = f"{task.name}: record {found.digest} does not run here or gives other numbers; it is removed"
            self.emit({"event": "log", "level": "warning", "message": message})

    def _record(self, candidate: Candidate) -> None:
        from service.tuning.record_files import append

        append(self.into, [self.provenance.record(candidate)])

    def _about(self) -> dict[str, Any]:
        return {
            "run": self._run_id(),
            "model": self.request.model.path.name,
            "target": self.target.name,
            "threads": self.threads,
            "seed": self.options.seed,
            "host": machine.model_name(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **({"records": self.options.into} if self.options.into else {}),
            **versions(),
        }

    def write(self, candidates: Sequence[Candidate], report: dict[str, Any]) -> list[str]:
        """records.jsonl, report.json and curve.png in the job's folder; their names."""
        from service.tuning.record_files import record_of
        from service.tuning.records import RecordSet
        from service.tuning.summary import draw

        made = [self.provenance.record(one) for one in candidates if one.verdict is not None]
        kept = [record_of(record) for record in report["on_record"]]
        (self.workdir / "records.jsonl").write_text(RecordSet([*made, *kept]).to_lines())
        (self.workdir / "report.json").write_text(json.dumps(report, indent=1))
        draw(
            report, self.workdir / "curve.png", f"{report['model']} on {report['target']}, {report['threads']} threads"
        )
        return ["records.jsonl", "report.json", "curve.png"]
