"""One run of `relaxc tune`: from the tasks of a model to records, a report and a curve."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

from relaxc.service import machine
from relaxc.service.config import settings
from relaxc.service.lowering.target import to_tvm
from relaxc.service.process.line import Line
from relaxc.service.records.files import append, read, record_of, remove
from relaxc.service.records.record import Record, RecordSet, RecordTarget
from relaxc.service.request import CompileRequest, TargetSpec, canonical_json
from relaxc.service.runtime.peak import Peak
from relaxc.service.tuning import generic
from relaxc.service.tuning.curve import curve_svg
from relaxc.service.tuning.hints import is_finished, nearest, standing
from relaxc.service.tuning.journal import Journal, name_of
from relaxc.service.tuning.listing import limit_s
from relaxc.service.tuning.measure.measurer import Measurer
from relaxc.service.tuning.measure.outcome import GPU_LIMITS, MeasureLimits, RpcOptions
from relaxc.service.tuning.options import TuneOptions, select
from relaxc.service.tuning.plan import LEAST_BATCH, Budget
from relaxc.service.tuning.provenance import Provenance, versions
from relaxc.service.tuning.run import Candidate, Start, TuningRun
from relaxc.service.tuning.summary import summarize
from relaxc.service.tuning.task import Task
from relaxc.service.tuning.tasks import FoundTasks
from relaxc.service.tuning.told import ELAPSED, KNOWN, RECORD, STRUCK, Told, read_lines

__all__ = ["Session"]


@dataclass
class Session:
    """One run: where it starts from, what it measures with, and where it writes."""

    request: CompileRequest
    options: TuneOptions
    found: FoundTasks
    peak: Peak | None
    workdir: Path
    emit: Callable[[dict[str, Any]], None]

    def __post_init__(self) -> None:
        self.target = RecordTarget.of(self.request.target)
        self.into = Path(self.options.into) if self.options.into else self.workdir / "records"
        self.threads = self.request.target.cores
        host = f"rpc:{self.options.rpc_key}" if self.options.rpc_key else _name_of(self.request.target)
        self.provenance = Provenance(self.target, self.threads, self.options.seed, host)

    def tune(self) -> tuple[list[Candidate], dict[str, Any]]:
        """Search for the tasks that were chosen and have no record, or all chosen ones with `again`."""
        options, tracker = self.options, self.options.tracker
        rpc = None if tracker is None else RpcOptions(*tracker, options.rpc_key)
        with self._journal() as journal:
            tasks, starts, kept = self._starts(journal)
            self.emit({"event": "log", "level": "info", "message": f"{len(tasks)} tasks, {len(kept)} on record"})
            with Measurer(
                self.request.target,
                threads=self.threads,
                builders=_builders(),
                limits=replace(self._limits, quiet_wait_s=settings().tune_quiet_wait_s),
                rpc=rpc,
                folder=self.workdir / "measure",
                far=self._far,
            ) as measurer:
                if self._is_gpu:  # nvcc takes longer than all of a measurement
                    untuned = [(task, task.default) for task in tasks]
                    measurer.build_ahead([each for each in untuned if journal.trial(*each) is None])
                tuning = TuningRun(
                    tasks,
                    starts,
                    measurer,
                    journal,
                    budget=Budget(options.trials, options.time_s, options.exhaustive, self._batch),
                    seed=options.seed,
                    confirmed=self._record,
                    refused=self._strike,
                    report=self.emit,
                    spent_s=(journal.noted(ELAPSED) or 0.0) if options.durable else 0.0,
                    passed=lambda seconds: self._pass(journal, seconds),
                )
                candidates = tuning.run()
        report = summarize(
            candidates, seconds=tuning.elapsed(), measuring_s=tuning.measuring_s, new_trials=tuning.new_trials
        )
        return candidates, {**self._about(), **report, "on_record": [record.to_dict() for record in kept]}

    @property
    def _far(self) -> tuple[Line, int] | None:
        count = self.options.far_builders
        return (self.emit, count) if count and isinstance(self.emit, Line) else None

    @property
    def _is_gpu(self) -> bool:
        return self.request.target.kind == "cuda"

    @property
    def _limits(self) -> MeasureLimits:
        return GPU_LIMITS if self._is_gpu else MeasureLimits()

    @property
    def _batch(self) -> int:
        """Trials at a time: where they are built on all cores and measured elsewhere, as many for each core.

        A task's operands are large on a GPU: it takes a second to make them again for its next trials.
        """
        return ceil(2 * LEAST_BATCH / _builders()) * _builders() if self._is_gpu else LEAST_BATCH

    def _journal(self) -> Journal:
        folder, resume = self.into / ".journal" / self.run, self.options.resume or self.options.durable
        return Journal(folder, resume=resume, known=self._before, told=self._tell)

    @cached_property
    def _before(self) -> dict[str, Any]:
        """What runs of this job told that were interrupted elsewhere, or in a folder that is gone."""
        file = self.workdir / KNOWN
        if not self.options.durable or not file.exists():
            return {}
        return {one.name: one.value for one in read_lines(file.read_text()) if one.run == self.run}

    def _tell(self, name: str, value: Any) -> None:
        if self.options.durable and self._before.get(name) != value:
            self.emit({"event": "trial", **Told(self.run, name, value).to_dict()})

    def _pass(self, journal: Journal, seconds: float) -> None:
        if self.options.durable:
            journal.note(ELAPSED, seconds)

    def _starts(self, journal: Journal) -> tuple[list[Task], list[Start], list[Record]]:
        """The tasks to search for and where each starts from, and the records that make others needless.

        They are noted: a run that is resumed starts from what it started from, not from its own first records.
        """
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
            starts.append(Start(limit_s(task, self.found, self.peak), tuple(noted["hints"]), stands or None))
        return tasks, starts, kept

    def _start(self, task: Task, known: RecordSet, record: Record | None) -> dict[str, Any]:
        hints = [task.point(near.rule, near.parameters) for near in nearest(task, known, self.target)]
        if record is None:
            return {"hints": hints, "standing": None}
        return {"hints": hints, "standing": [generic.recorded(task, record)[1], record.seconds], "trace": record.trace}

    def _known(self) -> RecordSet:
        places = [*map(Path, self.options.records), *([self.into] if self.into.exists() else [])]
        return RecordSet(record for place in places for record in read(place)).for_target(self.target)

    @cached_property
    def run(self) -> str:
        """What tells this run from others in the same folder; how long it may go on does not count.

        Times of another machine are none of this one's, so its name does. Where the records lie that it began with does
        not, which differs from server to server: where it began is noted.
        """
        options, compiling = self.options, replace(self.request.options, records=())
        request = replace(self.request, options=compiling).to_dict()
        what = {
            "request": {**request, "model": self.request.model.digest},
            "options": [options.seed, self.threads, self.provenance.host],
            "versions": versions(),
        }
        return hashlib.sha256(canonical_json(what).encode()).hexdigest()[:16]

    def _strike(self, candidate: Candidate) -> None:
        """Takes the record that a candidate started from or had won out of the folder: its kernel does not run here."""
        task = candidate.task
        point = candidate.verdict.point if candidate.verdict else (candidate.start.standing or ({}, 0.0))[0]
        how = task.how(dict(point))
        key = (task.workload, self.target, how.rule, how.version, task.dtype, self.threads)
        found = read(self.into).get(key) if self.into.exists() else None
        if found is not None and (dict(found.parameters), found.trace) == (dict(how.parameters), how.trace):
            remove(self.into, [found])
            self._tell(f"{STRUCK} {found.digest}", found.digest)
            message = f"{task.name}: record {found.digest} does not run here or gives other numbers; it is removed"
            self.emit({"event": "log", "level": "warning", "message": message})

    def _record(self, candidate: Candidate) -> None:
        record = self.provenance.record(candidate)
        append(self.into, [record])
        self._tell(f"{RECORD} {record.digest}", record.to_dict())

    def _about(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "model": self.request.model.path.name,
            "target": self.target.name,
            "threads": self.threads,
            "seed": self.options.seed,
            "host": _name_of(self.request.target),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **({"records": self.options.into} if self.options.into else {}),
            **versions(),
        }

    def write(self, candidates: Sequence[Candidate], report: dict[str, Any]) -> list[str]:
        """Write records.jsonl, report.json and curve.svg into the job's folder; return their names."""
        made = [self.provenance.record(one) for one in candidates if one.verdict is not None]
        kept = [record_of(record) for record in report["on_record"]]
        (self.workdir / "records.jsonl").write_text(RecordSet([*made, *kept]).to_lines())
        (self.workdir / "report.json").write_text(json.dumps(report, indent=1))
        where = report["host"] if self._is_gpu else f"{report['target']}, {report['threads']} threads"
        picture = curve_svg(report, f"{report['model']} on {where}")
        (self.workdir / "curve.svg").write_text(picture, encoding="utf-8", errors="replace")
        return ["records.jsonl", "report.json", "curve.svg"]


def _name_of(spec: TargetSpec) -> str:
    """What candidates are timed on calls itself."""
    gpu = machine.gpu() if spec.kind == "cuda" else None
    return machine.model_name() if gpu is None else gpu.name


def _builders() -> int:
    """As many as there are cores: where candidates are timed on all of them, nothing is built meanwhile."""
    return len(os.sched_getaffinity(0))
