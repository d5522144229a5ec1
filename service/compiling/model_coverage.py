"""Which kernels of a compiled model have tuning records, and the error where one is required and missing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relaxc.service.errors import NotTuned
from relaxc.service.repro import tune_command, tuned_remedy
from relaxc.service.request import CompileRequest
from relaxc.service.signature import Signature

if TYPE_CHECKING:
    from relaxc.service.lowering import Scheduled
    from relaxc.service.passes import Optimized
    from relaxc.service.records.coverage import Coverage, Kernel

__all__ = ["coverage_of", "require_records"]

_ASSUMED_SIZE = 64
"""The size of a symbolic dim without an upper bound, for the estimate of what takes time."""
_SHOWN = 3


def coverage_of(request: CompileRequest, signature: Signature, optimized: Optimized, scheduled: Scheduled) -> Coverage:
    """Return the coverage of what `schedule` made of the optimized model."""
    from relaxc.service.lowering.schedule import points_of
    from relaxc.service.lowering.target import to_tvm
    from relaxc.service.records.coverage import coverage, estimated_cycles

    target, sizes = to_tvm(request.target), _sizes(signature)
    calls = Counter(str(name) for name, _ in optimized.report.graph["calls"])
    once = {str(row["function"]): 1 for row in scheduled.report}  # a branch or a loop body calls what the graph has not

    def cycles(row: Mapping[str, Any]) -> float:
        return estimated_cycles(_number(row["flops"], sizes), _number(row["bytes"], sizes), target)

    def points(function: str, rule: str) -> int:
        return points_of(optimized.module[function], rule, request.target)

    return coverage(scheduled.report, once | calls, cycles, points)


def _sizes(signature: Signature) -> Mapping[str, int]:
    known = {
        name: max(bounds.minimum, min(bounds.maximum or _ASSUMED_SIZE, _ASSUMED_SIZE))
        for name, bounds in signature.dims
    }
    return defaultdict(lambda: _ASSUMED_SIZE, known)


def _number(value: Any, sizes: Mapping[str, int]) -> float:
    """A number of the report, which may be text in symbolic sizes; 0 where they do not determine it."""
    from relaxc.service.errors import ArtifactCorrupt
    from relaxc.service.runtime.dims import evaluate

    try:
        return float(evaluate(value, sizes))
    except (ArtifactCorrupt, ZeroDivisionError):
        return 0.0


def require_records(request: CompileRequest, found: Coverage) -> None:
    """Raise NotTuned where a kernel that `require_tuned` asks a record for has none; it names each."""
    which = request.options.require_tuned or "all"
    missing = found.missing(which)
    if not missing:
        return
    names = ", ".join(f"{kernel.functions[0]} ({kernel.workload})" for kernel in missing[:_SHOWN])
    more = f", and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    raise NotTuned(
        f"{len(missing)} of {len(found.required(which))} {'hot ' * (which == 'hot')}workloads have no tuning record "
        f"that fits {request.target.name}: {names}{more}",
        remedy=tuned_remedy(request) + _symbolic_remedy(missing),
        workloads=[kernel.to_dict() for kernel in missing],
        command=tune_command(request),
    )


def _symbolic_remedy(missing: Sequence[Kernel]) -> str:
    """What to do about those that `relaxc tune` leaves out."""
    symbolic = [kernel for kernel in missing if re.search(r"[^\dx ]", kernel.shapes.replace("scalar", ""))]
    if not symbolic:
        return ""
    return f" {len(symbolic)} of them have sizes that are known at run time only: fix them with `--shape` in both."
