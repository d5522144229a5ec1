"""Tunes a model: tasks → search → records. With compiler.py the only page that knows several stages.

`run` does the work in this process, which is a child that `jobs.entries` is called in; candidates are built and run in
processes of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaxc.service.compiler import load_and_schedule
from relaxc.service.compiling.stages import Stages
from relaxc.service.dump import no_dump
from relaxc.service.errors import InvalidOption, MachineMismatch, ToolMissing
from relaxc.service.process.task import Emit
from relaxc.service.request import CompileRequest, TargetSpec
from relaxc.service.tuning.options import TuneOptions

if TYPE_CHECKING:
    from relaxc.service.passes import Optimized
    from relaxc.service.runtime.peak import Peak
    from relaxc.service.tuning.tasks import FoundTasks

__all__ = ["STAGES", "find_tasks", "run", "tasks_in"]

STAGES = ("import", "optimize", "schedule", "peak", "tune", "report")

_NEEDED = ("xgboost",)


def run(request: CompileRequest, options: TuneOptions, workdir: Path, emit: Emit) -> None:
    """Tune `request` in this process; records are added to `options.into`, or `workdir`/records, as they are won.

    Leaves in `workdir` what the `result` event names: records.jsonl (those of the tasks that were chosen), report.json
    and curve.svg. With `list_only` the event has the tasks instead. Raise a RelaxcError, whose `fields["stage"]`
    names the stage.
    """
    from relaxc.service.tuning.listing import listed
    from relaxc.service.tuning.session import Session

    _require(request.target, options)
    request = _for_threads(request, options)
    stage = Stages(emit)
    found = find_tasks(request, stage)
    with stage("peak"):
        peak = _peak(request, options)
    if options.list_only:
        emit({"event": "result", "files": [], **listed(found, peak)})
        return
    session = Session(request, options, found, peak, workdir, emit)
    with stage("tune"):
        candidates, report = session.tune()
    with stage("report"):
        files = session.write(candidates, report)
    summary = {name: value for name, value in report.items() if name != "tasks"}
    emit({"event": "result", "files": files, "summary": summary, "stages": stage.seconds})


def find_tasks(request: CompileRequest, stage: Stages) -> FoundTasks:
    """Return what there is to tune in the model, whatever is on record."""
    untuned = replace(request.options, records=(), default_records=False, require_tuned=None)
    made = load_and_schedule(replace(request, options=untuned), stage, no_dump)
    return tasks_in(made.optimized, made.scheduled.report, request.target)


def tasks_in(optimized: Optimized, report: Sequence[Mapping[str, Any]], spec: TargetSpec) -> FoundTasks:
    """Return the tasks of an optimized model, of which `report` is what `lowering.schedule` says without records."""
    from relaxc.service.lowering.target import to_tvm
    from relaxc.service.passes.common.constants import size_bytes
    from relaxc.service.passes.common.weight_operands import weight_operands
    from relaxc.service.tuning.measure.builder_worker import known_rules
    from relaxc.service.tuning.tasks import tasks_of

    return tasks_of(
        optimized.module,
        report,
        Counter(str(name) for name, _ in optimized.report.graph["calls"]),
        spec,
        to_tvm(spec),
        known_rules(spec.kind, ()),
        weight_operands=weight_operands(optimized.module),
        weight_bytes=sum(size_bytes(tensor) for tensor in optimized.weights.values()),
        unfused=optimized.unfused,
    )


def _require(spec: TargetSpec, options: TuneOptions) -> None:
    """Raise ToolMissing without the extra `tune`, MachineMismatch where this machine cannot run the candidates."""
    from relaxc.service.lowering.target import missing_features

    spec.single("a tuning")
    for library in _NEEDED:
        if find_spec(library) is None:
            raise ToolMissing(f"{library} is not installed", remedy="pip install 'relaxc[tune]'.", extra="tune")
    if spec.kind == "cuda":
        _require_plain(spec, options)
    if not options.list_only and options.tracker is None and (lacking := missing_features(spec)):
        raise MachineMismatch(
            f"this machine cannot measure for {spec.name}: {'; '.join(lacking)}",
            remedy="Tune on a machine of that kind, or through one: --rpc-tracker HOST:PORT --rpc-key KEY.",
        )


def _require_plain(spec: TargetSpec, options: TuneOptions) -> None:
    """Raise InvalidOption for what means nothing on a GPU."""
    given = {"threads": options.threads != 0, "rpc_tracker": options.tracker is not None}
    for option in (name for name, is_given in given.items() if is_given):
        raise InvalidOption(
            f"kernels for {spec.name} are timed on this machine's GPU, without --{option.replace('_', '-')}",
            remedy="Leave it out, and tune on a machine with such a GPU.",
            option=option,
        )


def _for_threads(request: CompileRequest, options: TuneOptions) -> CompileRequest:
    """The request for as many cores as candidates are timed on: templates divide their work among the target's."""
    from relaxc.service.runtime.threads import default_threads

    if request.target.kind == "cuda":
        return request
    cores = request.target.cores
    threads = options.threads or (cores if options.tracker else min(cores, default_threads()))
    return replace(request, target=replace(request.target, cores=threads))


def _peak(request: CompileRequest, options: TuneOptions) -> Peak | None:
    """What this machine reaches with the target's instructions; None where candidates run elsewhere, or on a GPU."""
    from relaxc.service.runtime.peak import peak

    target = request.target
    return None if options.tracker or target.kind == "cuda" else peak(target.cores, target=target)
