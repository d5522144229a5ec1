"""Where the time of a compile goes: seconds by step; a step that runs inside of another counts for itself alone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

__all__ = ["Timings", "told"]

_NAME = re.compile(r"[a-z]{1,16}(\.[\w.:<>-]{1,80})?")
_MOST = 512
"""Steps that a record of a build has; a compile has about 150."""


class Timings:
    """Seconds by the name of the step: `graph.FoldConstants`, `tir.UnrollLoop`, `llvm`, `link`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Count what runs meanwhile as `step`, but for the steps inside of it."""
        self._begin()
        start = time.perf_counter()
        try:
            yield
        finally:
            self._end(step, time.perf_counter() - start)

    def add(self, step: str, seconds: float) -> None:
        """Count `seconds` more for the step."""
        self.seconds[step] = self.seconds.get(step, 0.0) + seconds

    def merge(self, seconds: Mapping[str, float]) -> None:
        """Count what another process took for its steps."""
        for step, took in seconds.items():
            self.add(step, took)

    def passes(self, kind: str) -> Any:
        """Return an instrument for TVM's PassContext: each pass that runs under it is the step `KIND.NAME`."""
        return _instrument()(self, kind)

    def _begin(self) -> None:
        self._inner.append(0.0)

    def _end(self, step: str, took: float) -> None:
        self.add(step, took - self._inner.pop())
        if self._inner:
            self._inner[-1] += took


@cache
def _instrument() -> Any:
    """The one class of instruments: TVM's classes are never freed, and know of each other, each of all."""
    import tvm

    @tvm.instrument.pass_instrument
    class Instrument:
        def __init__(self, timings: Timings, kind: str) -> None:
            self._timings, self._kind = timings, kind
            self._starts: list[float] = []

        def run_before_pass(self, module: Any, info: Any) -> None:
            self._timings._begin()
            self._starts.append(time.perf_counter())

        def run_after_pass(self, module: Any, info: Any) -> None:
            self._timings._end(f"{self._kind}.{_short(str(info.name))}", time.perf_counter() - self._starts.pop())

    return Instrument


def told(data: object, most_s: float) -> dict[str, float]:
    """Return of another process's word what steps may be: names of their form with numbers, none above `most_s`."""
    if not isinstance(data, dict):
        return {}
    fits = {
        name: float(took)
        for name, took in data.items()
        if isinstance(name, str) and _NAME.fullmatch(name) and type(took) in (int, float) and 0 <= took <= most_s
    }
    return dict(list(fits.items())[:_MOST])


def _short(name: str) -> str:
    """A pass's name without the package that it comes from: `tirx.UnrollLoop` → `UnrollLoop`."""
    return re.sub(r"[^\w:<>-]", "_", name.rpartition(".")[2])
