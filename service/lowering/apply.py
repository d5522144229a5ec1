"""One rule on one PrimFunc, and the marks that a scheduled PrimFunc takes to the code generator.

Compiles and tuning's candidates both come through here, so that what is measured is what is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relaxc.service.request import TargetSpec

if TYPE_CHECKING:
    from relaxc.schedules.template import Parameters, Rule, Schedule

__all__ = ["SCHEDULED", "apply_rule", "finish"]

SCHEDULED = "tirx.is_scheduled"
"""The attribute of a PrimFunc that needs no schedule."""


def apply_rule(rule: Rule, func: Any, target: Any, parameters: Parameters | None) -> Schedule | str:
    """Return the schedule, or why there is none. TVM's refusal of a step is a decline, but in strict mode: the rule
    should have declined before it took the first. Any other exception goes up.
    """
    from tvm.s_tir import ScheduleError

    from relaxc.schedules.strict import made_up_for
    from relaxc.schedules.template import Declined

    try:
        result = rule.apply(func, target, parameters)
    except ScheduleError as error:
        made_up_for(f"{rule.name} took a PrimFunc on which TVM then refused a step: {_refusal(error)}")
        return f"TVM refused a step: {_refusal(error)}"
    return result.reason if isinstance(result, Declined) else result


def finish(func: Any, spec: TargetSpec, opt_level: int) -> Any:
    """Return a scheduled PrimFunc with the marks that the pipeline reads."""
    func = func.with_attr(SCHEDULED, True)
    if spec.kind == "llvm" and opt_level >= 2:
        from relaxc.service.lowering.vector_functions import VECTOR_MATH

        func = func.with_attr(VECTOR_MATH, True)
    return func


def _refusal(error: BaseException) -> str:
    """What a ScheduleError says, without the program that it prints."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line.startswith(("Error message:", "ScheduleError:"))]
    return (said or lines or [""])[0].removeprefix("Error message:").removeprefix("ScheduleError:").strip()[:200]
