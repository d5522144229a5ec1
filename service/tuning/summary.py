"""What a run found, as JSON: for each task the best so far against trials and against seconds, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxc.service.tuning.run import Candidate

__all__ = ["row_of", "summarize"]


def row_of(candidate: Candidate) -> dict[str, Any]:
    """Return the row of one task: what it is, what was tried, and the verdict. Seconds are of one call."""
    task, progress, verdict = candidate.task, candidate.progress, candidate.verdict
    best = verdict.seconds if verdict else None
    limit = candidate.start.limit_s or None
    return {
        "name": task.name,
        "workload": task.workload,
        "rule": task.rule,
        "version": task.version,
        "shapes": task.shapes,
        "dtype": task.dtype,
        "weight": task.weight,
        "flops": task.flops,
        "bytes": task.bytes,
        "points": progress.search.space.size,
        "trials": progress.trials,
        "failed": progress.failed,
        "done": progress.done,
        "default": dict(task.default),
        "point": dict(verdict.point) if verdict else None,
        "untuned_s": verdict.untuned_s if verdict else None,
        "best_s": best,
        "gain": verdict.untuned_s / best if verdict and best else None,
        "gflops": task.flops / best / 1e9 if best else None,
        "limit_s": limit,
        "roofline": limit / best if best and limit else None,
        "curve": [list(step) for step in progress.curve],
    }


def summarize(
    candidates: Sequence[Candidate], *, seconds: float, measuring_s: float, new_trials: int
) -> dict[str, Any]:
    """Return the whole run; `untuned_s` and `tuned_s` are sums over all calls of the tasks in one run of the model."""
    rows = [row_of(one) for one in candidates]
    judged = [row for row in rows if row["best_s"] is not None]
    untuned, tuned = (sum(row[name] * row["weight"] for row in judged) for name in ("untuned_s", "best_s"))
    return {
        "tasks": rows,
        "trials": sum(row["trials"] for row in rows),
        "new_trials": new_trials,
        "seconds": round(seconds, 3),
        "trials_per_minute": round(60 * new_trials / measuring_s, 1) if measuring_s else None,
        "improved": sum(row["point"] != row["default"] for row in judged),
        "untuned_s": untuned,
        "tuned_s": tuned,
        "gain": untuned / tuned if tuned else None,
    }
