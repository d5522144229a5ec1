"""What a run found, as JSON for programs and as a picture: best-so-far against trials and against seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.tuning.run import Candidate

__all__ = ["draw", "row_of", "summarize"]


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


def draw(summary: dict[str, Any], path: Path, title: str) -> None:
    """Draw the tuning curves as a PNG: a line a task, its speed relative to untuned. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_trials, by_seconds = figure.subplots(1, 2, sharey=True)
    shown = sorted(
        (row for row in summary["tasks"] if row["curve"]), key=lambda row: -(row["untuned_s"] or 0.0) * row["weight"]
    )
    for place, row in enumerate(shown):
        first = row["curve"][0][2]
        trials, seconds, speeds = zip(*((step[0], step[1], first / step[2]) for step in row["curve"]), strict=True)
        label = row["name"][:32] if place < 10 else None  # the legend has room for the heaviest
        last = speeds[-1]
        by_trials.step([*trials, row["trials"]], [*speeds, last], where="post", label=label)
        by_seconds.step([*seconds, summary["seconds"]], [*speeds, last], where="post")
    for axes, name in ((by_trials, "trials"), (by_seconds, "seconds")):
        axes.set_xlabel(name)
        axes.axhline(1.0, color="gray", linewidth=0.5)
        axes.grid(alpha=0.3)
    by_trials.set_ylabel("speed of the best so far, untuned = 1")
    if shown:
        by_trials.legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120, format="png")
