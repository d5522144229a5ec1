"""The share of a model's estimated time that falls to kernels without a template, on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaxc.service.request import TargetSpec

__all__ = ["untemplated"]

_LAUNCH_S = 2e-6
"""What a kernel takes at least."""
_SHOWN = 3


def untemplated(report: Sequence[Mapping[str, Any]], spec: TargetSpec, peak: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `share` of the kernels that dlight or plain loops schedule, and the longest of them by name and share.

    As if every kernel reached its limit by `peak`, which those without a template mostly miss by far: the share is one
    at least. Each kernel counts once, whatever calls it; sizes that are not known count as a launch.
    """
    from relaxc.schedules.cuda import WITHOUT_TEMPLATE

    assert spec.kind == "cuda", spec
    times = [(_seconds(row, peak), row) for row in report]
    whole = sum(seconds for seconds, _ in times) or 1.0
    without = [(seconds / whole, row) for seconds, row in times if row["rule"] in WITHOUT_TEMPLATE]
    longest = sorted(without, key=lambda pair: -pair[0])[:_SHOWN]
    kernels = [[row["function"], row["rule"], round(share, 3)] for share, row in longest]
    return {"share": round(sum(share for share, _ in without), 3), "kernels": kernels}


def _seconds(row: Mapping[str, Any], peak: Mapping[str, Any]) -> float:
    flops, size = (each if isinstance(each := row.get(name), int) else 0 for name in ("flops", "bytes"))
    memory = peak["levels"][-1]["read_gbps"] * 1e9
    operand = str(row.get("dtype", "")).split("+")[0]
    return float(max(_LAUNCH_S, size / memory, flops / (peak["by_dtype"].get(operand, peak["gflops"]) * 1e9)))
