"""The files of candidates: a comparison takes those that were built and ran, and builds none of them again."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from relaxc.service.tuning.measure.messages import emitted_beside
from relaxc.service.tuning.measure.outcome import Outcome
from relaxc.service.tuning.task import Task

if TYPE_CHECKING:
    from relaxc.schedules.template import Parameters

__all__ = ["Libraries"]

_MOST = 256
"""Of a few ten KB each."""


class Libraries:
    """Keeps the libraries of the points that were measured or looked for last, `most` of them, in `folder`."""

    def __init__(self, folder: Path, most: int = _MOST) -> None:
        self._folder, self._most = folder, most
        self._made = 0
        self._kept: OrderedDict[str, tuple[Outcome, str]] = OrderedDict()
        self._ahead: dict[str, str] = {}

    def new(self) -> str:
        """Return the path of a library that is yet to be built."""
        self._made += 1
        return str(self._folder / f"{self._made}.so")

    def reserve(self, task: Task, point: Mapping[str, int]) -> str:
        """Return the path of a library that is built before its point is measured."""
        return self._ahead.setdefault(_key(task, point), self.new())

    def place(self, task: Task, point: Mapping[str, int]) -> str:
        """Return the path that was reserved for a point, else a new one."""
        return self._ahead.get(_key(task, point)) or self.new()

    def keep(self, task: Task, outcome: Outcome, library: str) -> None:
        """Keep the library of a point if it was measured, and remove it if not; let go of the one kept longest."""
        if outcome.kind != "measured":
            _unlink(library)
            return
        key = _key(task, outcome.point)
        if key in self._kept and self._kept[key][1] != library:
            self._remove(key)
        self._kept[key] = (outcome, library)
        while len(self._kept) > self._most:
            self._remove(next(iter(self._kept)))

    def find(self, task: Task, point: Parameters) -> tuple[Outcome, str] | None:
        """Return what was kept of a point: its outcome and its library, which now counts as the newest."""
        key = _key(task, point)
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def _remove(self, key: str) -> None:
        _unlink(self._kept.pop(key)[1])


def _unlink(library: str) -> None:
    Path(library).unlink(missing_ok=True)
    emitted_beside(library).unlink(missing_ok=True)


def _key(task: Task, point: Mapping[str, int]) -> str:
    return json.dumps([task.workload, dict(task.sizes), asdict(task.how(dict(point)))], sort_keys=True)
