"""The picture of a tuning run as SVG: a line a task, how fast its best so far is against trials and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["curve_svg"]

_WIDTH, _HEIGHT = 1100, 460
_TOP, _BOTTOM, _LEFT, _PANEL, _BETWEEN = 40, 400, 60, 400, 40
_LEGEND_X = _LEFT + 2 * _PANEL + _BETWEEN + 16
_NAMED = 10
"""Tasks that the legend names, the heaviest."""

_COLOURS = ("1f77b4", "ff7f0e", "2ca02c", "d62728", "9467bd", "8c564b", "e377c2", "7f7f7f", "bcbd22", "17becf")

Steps = Sequence[tuple[float, float]]
"""Where the line is, and how fast the best is from there on; the last is where it ends."""


def curve_svg(summary: Mapping[str, Any], title: str) -> str:
    """Return the picture of what `relaxc.service.tuning.summary.summarize` tells."""
    tasks = sorted(
        (row for row in summary["tasks"] if row["curve"]), key=lambda row: -(row["untuned_s"] or 0.0) * row["weight"]
    )
    by_trials = [_steps(row, 0, row["trials"]) for row in tasks]
    by_seconds = [_steps(row, 1, summary["seconds"]) for row in tasks]
    fastest = max([1.0, *(speed for steps in by_trials for _, speed in steps)])
    body = [
        f'<text x="{_WIDTH / 2:.0f}" y="20" text-anchor="middle" font-size="14">{_plain(title)}</text>',
        *_panel(by_trials, _LEFT, "trials", fastest),
        *_panel(by_seconds, _LEFT + _PANEL + _BETWEEN, "seconds", fastest),
        f'<text transform="translate(18 {(_TOP + _BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        "speed of the best so far, untuned = 1</text>",
        *_legend([str(row["name"])[:32] for row in tasks[:_NAMED]]),
    ]
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>", ""])


def _steps(row: Mapping[str, Any], at: int, end: float) -> Steps:
    first = row["curve"][0][2]
    steps = [(float(step[at]), first / step[2]) for step in row["curve"]]
    return [*steps, (float(end), steps[-1][1])]


def _panel(lines: Sequence[Steps], left: int, name: str, fastest: float) -> Iterator[str]:
    """One pair of axes with the lines of all tasks."""
    longest = max([1.0, *(steps[-1][0] for steps in lines)])

    def x(value: float) -> float:
        return left + _PANEL * min(value, longest) / longest

    def y(speed: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * speed / (1.05 * fastest)

    yield f'<path d="M{left} {_TOP}V{_BOTTOM}H{left + _PANEL}" fill="none" stroke="black"/>'
    for mark in (longest * part / 4 for part in range(5)):
        yield f'<text x="{x(mark):.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{mark:.4g}</text>'
    for mark in (fastest * part / 4 for part in range(5)):
        yield f'<path d="M{left} {y(mark):.1f}h{_PANEL}" stroke="black" stroke-opacity="0.15"/>'
        yield f'<text x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:.3g}</text>'
    yield f'<path d="M{left} {y(1):.1f}h{_PANEL}" stroke="gray"/>'
    yield f'<text x="{left + _PANEL / 2:.0f}" y="{_BOTTOM + 36}" text-anchor="middle">{name}</text>'
    for place, steps in enumerate(lines):
        path = f"M{x(steps[0][0]):.1f} {y(steps[0][1]):.1f}"
        path += "".join(f"H{x(at):.1f}V{y(speed):.1f}" for at, speed in steps[1:])
        yield f'<path d="{path}" fill="none" stroke="#{_COLOURS[place % len(_COLOURS)]}" stroke-width="1.5"/>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    for place, name in enumerate(names):
        y = _TOP + 18 * place
        yield f'<path d="M{_LEGEND_X} {y}h14" stroke="#{_COLOURS[place]}" stroke-width="3"/>'
        yield f'<text x="{_LEGEND_X + 20}" y="{y + 4}" font-size="9">{_plain(name)}</text>'


def _plain(text: str) -> str:
    """The text without what XML does not take: names come from models."""
    return escape("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text))
