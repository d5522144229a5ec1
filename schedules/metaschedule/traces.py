"""Schedules of MetaSchedule's generic space as the traces that made them: they tune what no template takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import Schedule as Steps
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.schedule import Trace

from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.metaschedule.trace_check import parse
from relaxc.schedules.template import Declined, Schedule

__all__ = ["METASCHEDULE", "Traced", "sample"]

_NAME = "main"
_MOST_FAILURES = 20
"""Of a schedule that its postprocessing refuses: how often another is drawn."""


@dataclass(frozen=True, slots=True)
class Traced:
    """Takes a rule's place for records that have a trace; see `relaxc.schedules.template.Rule` for name and version."""

    name: str = "metaschedule"
    version: int = 1

    def replay(self, func: PrimFunc, trace: str) -> Schedule | Declined:
        """Return `func` scheduled as `trace` says (JSON, of whoever wrote it), or why it cannot be; do nothing else."""
        try:
            steps = parse(trace)
        except ValueError as error:
            return Declined(f"its trace is refused: {error}")
        scheduled = Steps(tvm.IRModule({_NAME: func}), seed=1, error_render_level="none")
        try:
            Trace.apply_json_to_schedule(steps, scheduled)
        except Exception as error:  # noqa: BLE001  # TVM raises whatever its checks say of a trace for something else
            return Declined(f"its trace does not apply: {_last_line(error)}")
        return Schedule(scheduled.mod[_NAME])


METASCHEDULE = Traced()


def sample(func: PrimFunc, target: Target, *, seed: int, count: int) -> tuple[str, ...]:
    """At most `count` different traces of the space for a CPU, as JSON; equal arguments give equal traces.

    None where MetaSchedule has nothing to choose for `func`, or cannot schedule it. `seed` is between 1 and 2**31 - 1.
    """
    context = _context(func, target, seed)
    try:
        context.pre_tuning(max_trials=count, num_trials_per_iter=count)
        found = context.generate_measure_candidates() or []
    except Exception:  # noqa: BLE001  # it raises for whatever its rules did not foresee
        return ()
    context.post_tuning()
    texts = dict.fromkeys(_text(candidate.sch.trace) for candidate in found)
    return tuple(text for text in texts if isinstance(METASCHEDULE.replay(func, text), Schedule))


def _context(func: PrimFunc, target: Target, seed: int) -> Any:
    """A TuneContext, but not by its constructor: that compiles the tensor intrinsics of all GPUs, for 15 seconds."""
    context = ms.TuneContext.__new__(ms.TuneContext)
    context.__init_handle_by_constructor__(
        _ffi_api.TuneContext,
        tvm.IRModule({_NAME: func.with_attr("global_symbol", _NAME)}),
        target,
        ms.space_generator.PostOrderApply(sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"),
        ms.search_strategy.ReplayTrace(max_fail_count=_MOST_FAILURES),
        _NAME,
        1,  # thread: with more the traces depend on which is first
        seed,
        None,  # no logger
    )
    _ffi_api.TuneContextInitialize(context)
    return context


def _text(trace: Any) -> str:
    plain = trace.simplified(remove_postproc=False).as_json()
    return json.dumps(plain, separators=(",", ":"), default=lambda number: number.value)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:200] if lines else ''}"
