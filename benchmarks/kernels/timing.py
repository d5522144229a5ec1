"""Times of a compiled operator in and out of the caches, beside its limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from statistics import median
from typing import Any

import tvm

from benchmarks.kernels.cases import Case
from benchmarks.kernels.compiled import Compiled, Kernel
from relaxc.service.runtime.peak import Peak
from relaxc.service.runtime.roofline import limit_of
from relaxc.service.runtime.threads import use_threads

__all__ = ["Row", "measure"]

_SAMPLE_S = 3e-4
"""A sample is of so many calls that the clock and the call itself do not count."""
_MIN_SAMPLES, _MAX_SAMPLES = 5, 400
_COLD = 1.3
"""Times the last cache: the tensors of all turns together, so that each comes from memory again."""
_MOST_BYTES = 1 << 30
_FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One operator on one number of threads; `cold` when its tensors come from memory. `ms` is the median.

    `of_limit` over 1 is no error: fewer multiplications than the direct ones (Winograd), or stores that bypass.
    """

    family: str
    case: str
    threads: int
    cold: bool
    ms: float
    best_ms: float
    limit_ms: float
    bound: str
    of_limit: float
    gflops: float | None
    gbps: float
    kernels: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON values."""
        return asdict(self)


def counted(kernels: Sequence[Kernel], before: str = "") -> list[Kernel]:
    """The kernels that are the operator's own; changes to a blocked layout are at the ends of a whole model."""
    after = [kernel for kernel in kernels if not before or before not in kernel.row["function"]]
    own = [kernel for kernel in after if kernel.computes or "pack_channels" not in kernel.row["function"]]
    return own or list(kernels)


def measure(case: Case, compiled: Compiled, peak: Peak, *, seconds: float = 0.2) -> list[Row]:
    """The operator's rows for the peak's threads: in the caches, and out of them where memory bounds it then."""
    use_threads(peak.threads)
    kernels = counted(compiled.kernels, case.before)
    written = _FP32_BYTES * sum(output.size for output in compiled.outputs)
    moved = written + _FP32_BYTES * sum(math.prod(shape) for shape in (*case.inputs, *case.weights))
    flops = sum(kernel.row["flops"] for kernel in kernels) if case.flops is None else case.flops
    rows = []
    for cold in (False, True):
        seen = replace(peak, levels=peak.levels[-1:]) if cold else peak
        limit = limit_of(seen, flops, moved, written)
        if cold and limit.bound == "compute":
            break
        copies = _copies(peak, moved) if cold else 1
        times = _times(_turns(kernels, copies), seconds)
        ms = median(times)
        rows.append(
            Row(
                family=case.family,
                case=case.label,
                threads=peak.threads,
                cold=cold,
                ms=round(ms, 6),
                best_ms=round(min(times), 6),
                limit_ms=round(limit.ms, 6),
                bound=limit.bound,
                of_limit=round(limit.ms / ms, 4),
                gflops=None if case.flops is None else round(flops / ms / 1e6, 2),
                gbps=round(moved / ms / 1e6, 2),
                kernels=tuple(_named(kernel) for kernel in kernels),
            )
        )
    return rows


def _named(kernel: Kernel) -> dict[str, Any]:
    return {"function": kernel.row["function"], "rule": kernel.row["rule"], "parameters": kernel.row["parameters"]}


def _copies(peak: Peak, moved: int) -> int:
    last = peak.levels[-2].size_bytes if len(peak.levels) > 1 else None
    return max(2, math.ceil(min(_MOST_BYTES, _COLD * (last or 0)) / moved))


def _turns(kernels: Sequence[Kernel], copies: int) -> Iterator[Callable[[], None]]:
    """Calls of the whole operator, each turn on tensors of its own."""
    sets = [[kernel.tensors for kernel in kernels]]
    sets += [[tuple(map(_copy, kernel.tensors)) for kernel in kernels] for _ in range(copies - 1)]
    functions = [kernel.function for kernel in kernels]

    def turn(tensors: list[tuple[Any, ...]]) -> Callable[[], None]:
        pairs = list(zip(functions, tensors, strict=True))

        def run() -> None:
            for function, arguments in pairs:
                function(*arguments)

        return run

    return cycle([turn(tensors) for tensors in sets])


def _copy(tensor: Any) -> Any:
    return tvm.runtime.tensor(tensor.numpy())


def _times(turns: Iterator[Callable[[], None]], seconds: float) -> list[float]:
    """Milliseconds of a turn, by samples of several turns each."""
    next(turns)()
    start = time.perf_counter()
    next(turns)()
    once = time.perf_counter() - start
    count = max(1, math.ceil(_SAMPLE_S / once))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _MIN_SAMPLES or (len(times) < _MAX_SAMPLES and time.perf_counter() < end):
        batch = [next(turns) for _ in range(count)]
        start = time.perf_counter()
        for run in batch:
            run()
        times.append((time.perf_counter() - start) / count * 1e3)
    return times
