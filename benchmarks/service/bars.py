"""A measured figure beside the bar it has to clear."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.table import Table

__all__ = ["Figure", "table"]

_HOLDS = {">=": operator.ge, "<=": operator.le, "<": operator.lt, "=": operator.eq}


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` in `unit`; `relation` and `bar` say what it must be, None where it is told for its own sake."""

    what: str
    value: float
    unit: str
    relation: str = ""
    bar: float | None = None
    how: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether it clears its bar; None without one."""
        return None if self.bar is None else bool(_HOLDS[self.relation](self.value, self.bar))

    def to_json(self) -> str:
        """One JSON line."""
        return json.dumps({**asdict(self), "holds": self.holds})


def table(figures: Iterable[Figure]) -> Table:
    """A row a figure."""
    shown = Table(title_justify="left", box=None, pad_edge=False)
    for head in ("", "measured", "bar", "holds", "how"):
        shown.add_column(head, justify="right" if head in ("measured", "bar") else "left", overflow="fold")
    for figure in figures:
        bar = "" if figure.bar is None else f"{figure.relation} {figure.bar:g} {figure.unit}"
        holds = {None: "", True: "yes", False: "NO"}[figure.holds]
        shown.add_row(figure.what, f"{figure.value:.4g} {figure.unit}", bar, holds, figure.how)
    return shown
