"""Schedules whose steps TVM does not check: which templates need one, and why."""

from __future__ import annotations

from tvm import s_tir

from relaxc.schedules.ir.types import PrimFunc, TirSchedule

__all__ = ["UNCHECKED", "unchecked_schedule"]

UNCHECKED = {
    "cpu.winograd": "TVM takes the image, row and column of a tile, quotients and remainders of one number, for"
    " bindings that may write an element twice",
}
"""Template → what TVM refuses although it is right. A test holds that no other schedule is unchecked."""


def unchecked_schedule(func: PrimFunc, template: str) -> TirSchedule:
    """Return a schedule of `func` whose steps are not checked. Raise KeyError where the template has no reason."""
    UNCHECKED[template]
    return s_tir.Schedule(func, enable_check=False)
