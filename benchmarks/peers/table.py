"""The report as a table for a person."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from benchmarks.peers.report import CaseReport, Row, Summary
from benchmarks.peers.runtimes import OURS, RUNTIMES

__all__ = ["details", "overview", "verdicts"]

_MIB = 1 << 20


def overview(reports: Sequence[CaseReport]) -> Table:
    """A row a case: the median of each runtime, and the ratio to the best peer."""
    there = [name for name in RUNTIMES if any(report.row(name) for report in reports)]
    heads = ["", *(f"{name} ms" for name in there), "ratio", "p10 to p90", "best peer", "memory"]
    table = Table(title="Median times; ratio and memory are ours over the best fp32 peer's", title_justify="left")
    for head in heads:
        table.add_column(head, justify="left" if head in ("", "best peer") else "right", overflow="fold")
    for report in reports:
        rows = [report.row(name) for name in there]
        times = [f"{row.median_ms:.2f}" if row else "" for row in rows]
        table.add_row(report.case, *times, *_ratio(report))
    return table


def _ratio(report: CaseReport) -> tuple[str, str, str, str]:
    ratio, memory = report.ratio, report.memory_ratio
    if ratio is None:
        return "", "", "", ""
    return f"{ratio.median:.3f}", f"{ratio.p10:.3f} to {ratio.p90:.3f}", ratio.peer, f"{memory:.2f}" if memory else ""


def details(report: CaseReport) -> Table:
    """A row a runtime: times, memory, compile time, size, and how far its outputs are from ours."""
    numbers = ("ms", "p10", "p90", "run MiB", "load MiB", "compile s", "load s", "size MiB")
    table = Table(title=f"{report.case}, {report.threads} threads", title_justify="left")
    for head in ("", *numbers, "from ours"):
        table.add_column(head, justify="right" if head in numbers else "left")
    for row in report.rows:
        table.add_row(*_detail(row))
    if notes := [*map(_capped, report.capped), *map(escape, report.failed.values())]:
        table.caption = "\n".join(notes)
        table.caption_justify = "left"
    return table


def _capped(row: Row) -> str:
    share = row.facts["avx512_share"]
    said = "instructions were not sampled" if share is None else f"{share:.1%} of the vector instructions are AVX-512"
    return f"{row.runtime}: {said}{'' if row.counts or row.runtime in OURS else ', no peer'}"


def _detail(row: Row) -> list[str]:
    times = [f"{value:.3f}" for value in (row.median_ms, row.p10_ms, row.p90_ms)]
    sizes = [f"{value / _MIB:.0f}" for value in (row.peak_bytes, row.load_peak_bytes)]
    seconds = [f"{value:.1f}" for value in (row.compile_s, row.load_s)]
    return [f"{row.runtime} {row.version}", *times, *sizes, *seconds, f"{row.size_bytes / _MIB:.1f}", _error(row)]


def _error(row: Row) -> str:
    if row.runtime == OURS or row.agrees is None:
        return ""
    said = "other outputs" if row.error is None else f"{row.error:.1e}"
    return said if row.agrees else f"[{'red' if row.counts else 'yellow'}]{said}, over the fp32 tolerance"


def verdicts(summary: Summary) -> list[str]:
    """A line a bar."""
    return [
        f"{what}: {found:.3f}, the bar is {bar:.2f}: {'PASS' if passed else 'FAIL'}"
        for what, found, bar, passed in summary.verdicts
    ]
