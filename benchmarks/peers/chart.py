"""The report as a bar chart: each runtime's time over the best peer's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.report import CaseReport
from benchmarks.peers.runtimes import OURS, RUNTIMES

__all__ = ["COLOURS", "bars", "draw"]

COLOURS = {
    "relaxc": "#c0392b",
    "relaxc-untuned": "#8fb3e8",
    "relaxc-other": "#e8a08f",
    "relaxc-fp32": "#b7c9e2",
    "onnxruntime": "#2c7fb8",
    "openvino": "#41b6c4",
    "openvino-bf16": "#c7e9b4",
    "aotinductor": "#7f7f7f",
    "torch": "#cccccc",
}
_HIGHEST = 2.5


def bars(reports: Sequence[CaseReport]) -> dict[str, list[tuple[int, float]]]:
    """For each runtime, (index of the case, time over the best peer's); cases without a peer are left out."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name in RUNTIMES:
        for index, report in enumerate(reports):
            row, best = report.row(name), report.best
            if row is not None and best is not None:
                found.setdefault(name, []).append((index, row.median_ms / best.median_ms))
    return found


def draw(reports: Sequence[CaseReport], path: Path) -> None:
    """Writes the chart as PNG. Bars over 2.5 are cut, with their value on them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = bars(reports)
    width = 0.85 / max(1, len(heights))
    figure, axes = pyplot.subplots(figsize=(max(8.5, 1.5 * len(reports)), 4.2), layout="constrained")
    for place, (name, points) in enumerate(heights.items()):
        at = [index + (place - (len(heights) - 1) / 2) * width for index, _ in points]
        axes.bar(at, [min(ratio, _HIGHEST) for _, ratio in points], width, label=name, color=COLOURS[name])
        for x, (index, ratio) in zip(at, points, strict=True):
            row = reports[index].row(name)
            if name == OURS and row:
                said = f"{row.median_ms:.3g} ms"
                axes.text(x, 0.03, said, ha="center", va="bottom", rotation=90, fontsize=7, color="white")
            elif ratio > _HIGHEST:
                axes.text(x, _HIGHEST + 0.02, f"{ratio:.1f}", ha="center", va="bottom", rotation=90, fontsize=7)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(reports)), [report.case.replace(",", "\n") for report in reports])
    axes.set_ylabel("time over the best fp32 peer's")
    axes.set_ylim(0, _HIGHEST + 0.45)
    axes.set_title(f"fp32, {reports[0].threads} threads: lower is faster", loc="left", fontsize=10)
    axes.legend(ncols=len(heights), fontsize=8, loc="upper left", frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
