"""Best-so-far of both tuners, against trials and against seconds, a row of the picture for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.tuning.curve import Curve

__all__ = ["draw"]

_COLOURS = {"relaxc": "#c0392b", "upstream": "#2c7fb8"}


def draw(found: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """Writes the picture as PNG; times are as each tuner measured them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3 * len(found)), layout="constrained")
    rows = figure.subplots(len(found), 2, squeeze=False)
    for (case, curves), (by_trials, by_seconds) in zip(found.items(), rows, strict=True):
        for curve in curves:
            trials, seconds, best = zip(*curve.steps, strict=True)
            style = {"where": "post", "color": _COLOURS.get(curve.tuner), "label": curve.tuner}
            by_trials.step(trials, [value * 1e3 for value in best], **style)
            by_seconds.step(seconds, [value * 1e3 for value in best], **style)
        for axes, name in ((by_trials, "trials"), (by_seconds, "seconds")):
            axes.set_xlabel(name)
            axes.set_yscale("log")
            axes.grid(alpha=0.3, which="both")
        by_trials.set_ylabel(f"{case}: best, ms")
        by_trials.legend()
    figure.savefig(path, dpi=110)
