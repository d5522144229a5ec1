"""What this CPU can do at most: multiply-adds of each dtype, and bytes read and copied in each cache, once measured.

A virtual machine shares its caches and its clock with others: the numbers are the best that it reached at that time.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from relaxc.service import machine
from relaxc.service.config import settings
from relaxc.service.request import TargetSpec
from relaxc.service.runtime import probes
from relaxc.service.runtime.threads import default_threads, use_threads

__all__ = ["Level", "Peak", "Progress", "instructions", "levels_of", "measure", "peak", "vectors"]

_VERSION = 7
"""Rises when the probes change: what an older one measured is measured again."""

_BUDGET_S, _MOST_BUDGET_S = 0.1, 0.4
_ALONE = 0.9
"""Of the time of all threads, the share that they were on a core: TVM's workers spin while they wait for each other."""
_CALL_BYTES = 64 << 20
"""Read by one call of a probe, so that starting the threads does not count."""
_FMAS = 200_000
_MEMORY_BYTES = (256 << 20, 512 << 20)
"""The least and the most to read from memory: four times the last cache between them."""
_FEATURES = ("avx512f", "avx2", "fma", "avx512bf16", "avx512vnni", "amx-tile", "amx-bf16", "amx-int8")
"""What the probes run with, of x86-64: by LLVM's names."""

Progress = Callable[[int, int], None]
"""Takes how many of the probes have run, and how many there are."""


def _unheard(_done: int, _total: int) -> None:
    pass


# A machine that tells nothing of its caches: the smallest of their class.
_USUAL = (machine.Cache(1, 32 << 10, 1), machine.Cache(2, 512 << 10, 1))


@dataclass(frozen=True, slots=True)
class Level:
    """A cache, or memory: how much it holds for all threads together (None: all), and how fast it is.

    `read_gbps` is 10^9 bytes read a second, `copy_gbps` 10^9 bytes read and written a second by a loop that does both.
    """

    name: str
    size_bytes: int | None
    read_gbps: float
    copy_gbps: float


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that `threads` threads of `machine` reached: float32 GFLOP/s, and bytes from each level, L1 first.

    `products` has 10^9 multiplications and additions a second by the dtype of the left operand, of dtypes with an
    instruction of their own. `alone` is False where another process took the cores meanwhile: then the machine reaches
    more. `instructions` are those of x86-64 that the probes ran with.
    """

    machine: str
    threads: int
    gflops: float
    levels: tuple[Level, ...]
    alone: bool = True
    products: Mapping[str, float] = field(default_factory=dict)
    instructions: tuple[str, ...] = ()

    @property
    def memory(self) -> Level:
        """The level that holds everything."""
        return self.levels[-1]

    def level_of(self, size_bytes: int) -> Level:
        """Return the first level that holds so many bytes."""
        return next((level for level in self.levels if (level.size_bytes or size_bytes) >= size_bytes), self.memory)

    def of(self, dtype: str) -> Peak:
        """Return the peak for products whose left operand is of `dtype`, which may have other dtypes behind a plus."""
        return replace(self, gflops=max(self.gflops, self.products.get(dtype.partition("+")[0], 0.0)))

    def to_dict(self) -> dict[str, Any]:
        """Return the peak as JSON values; `from_dict` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Peak:
        """Return the peak that `to_dict` described. KeyError, TypeError or ValueError for what is none."""
        levels = levels_of(data)
        products = {str(name): float(rate) for name, rate in data["products"].items()}
        by = tuple(data["instructions"])
        found = Peak(data["machine"], data["threads"], data["gflops"], levels, data["alone"], products, by)
        if found.gflops <= 0:
            raise ValueError("a peak is positive")
        return found


def levels_of(data: Mapping[str, Any]) -> tuple[Level, ...]:
    """Return the `levels` of a peak as JSON values. KeyError, TypeError or ValueError for what are none."""
    levels = tuple(Level(**level) for level in data["levels"])
    if not levels or min(rate for one in levels for rate in (one.read_gbps, one.copy_gbps)) <= 0:
        raise ValueError("a peak is positive")
    return levels


def peak(
    threads: int | None = None,
    *,
    target: TargetSpec | None = None,
    again: bool = False,
    progress: Progress = _unheard,
) -> Peak:
    """Return the peak of this machine, from the cache folder if it was measured before; measuring takes some seconds.

    It is that of the instructions that code for `target` has, all of this CPU's if None. What is kept is found by the
    CPU's name, its cores, the threads and these instructions. `again` measures anew; so does what was measured while
    the machine was busy. Only what measures calls `progress`, first with nothing done.
    """
    threads, by = default_threads() if threads is None else threads, instructions(target)
    path = _path(threads, by)
    kept = None if again else _kept(path, threads, by)
    if kept is not None and kept.alone:
        return kept
    found = measure(threads, progress, by)
    if kept is not None and kept.gflops > found.gflops and not found.alone:
        return kept
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": _VERSION, "peak": found.to_dict()}))
    except OSError:
        pass  # a folder that cannot be written costs some seconds next time, and nothing else
    return found


def instructions(target: TargetSpec | None = None) -> tuple[str, ...]:
    """Return those of x86-64's instructions that the probes use, this CPU has, and code for `target` (if any) uses."""
    has = machine.host_features()
    if target is not None:
        short = target.vector_bits < 512
        has &= {name for name in target.features if not (short and name.startswith(("avx512", "amx")))}
    return tuple(name for name in _FEATURES if name in has)


def _kept(path: Path, threads: int, by: tuple[str, ...]) -> Peak | None:
    try:
        kept = json.loads(path.read_text())
        found = Peak.from_dict(kept["peak"]) if kept["version"] == _VERSION else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # not measured yet, or a file that another version wrote
    if found is None or (found.machine, found.threads, found.instructions) != (_name(), threads, by):
        return None
    return found


def _name() -> str:
    return f"{machine.model_name()}, {machine.cpu().cores} cores"


def _path(threads: int, by: tuple[str, ...]) -> Path:
    digest = hashlib.sha256(_name().encode()).hexdigest()[:16]
    fewer = "" if by == instructions() else "-" + "-".join(by or ("none",))
    return settings().cache_dir / "peak" / f"{digest}-{threads}{fewer}.json"


def measure(threads: int, progress: Progress = _unheard, by: tuple[str, ...] | None = None) -> Peak:
    """Run the probes with `threads` threads: of each the best of as many runs as fit into 0.1 s, after a warm-up.

    They use the `instructions` in `by`, all of this CPU's if None.
    """
    use_threads(threads)
    by = instructions() if by is None else by
    lanes, target = vectors(by)
    row = threads * probes.CHAINS * lanes
    loops = [_Loop.over(name, capacity, probed, 4 * row) for name, capacity, probed in _sizes(threads)]
    functions = {"fma": probes.fma(threads, lanes, _FMAS)}
    dots = probes.fastest(by)
    functions |= {name: probes.products(threads, dot.lanes(lanes), _FMAS, dot) for name, dot in dots.items()}
    for loop in loops:
        functions[f"read_{loop.name}"] = probes.read(threads, lanes, loop.steps, loop.repeats)
        functions[f"copy_{loop.name}"] = probes.copy(threads, lanes, loop.half, 2 * loop.repeats)
    progress(0, len(functions))
    library = probes.build(functions, target)
    sums = _zeros(row)
    fma = _best(threads, partial(library["fma"], _zeros(lanes), sums))
    levels, alone, products = [], fma.alone, {}
    for at, (name, dot) in enumerate(dots.items()):
        progress(1 + at, len(functions))
        sums_of_dots = threads * dot.chains * dot.lanes(lanes)
        operands = _zeros(dot.lanes(lanes), "int32"), _zeros(sums_of_dots, dot.sums)
        best = _best(threads, partial(library[name], *operands))
        products[name] = round(2 * sums_of_dots * dot.k * _FMAS / best.seconds / 1e9, 1)
        alone = alone and best.alone
    for at, loop in enumerate(loops):
        progress(1 + len(dots) + 2 * at, len(functions))
        read = _best(threads, partial(library[f"read_{loop.name}"], _zeros(loop.steps * row), sums))
        progress(2 + len(dots) + 2 * at, len(functions))
        pair = _zeros(loop.half * row), _zeros(loop.half * row)
        copied = _best(threads, partial(library[f"copy_{loop.name}"], *pair))
        read_bytes, copied_bytes = 4 * row * loop.steps * loop.repeats, 2 * 4 * row * loop.half * 2 * loop.repeats
        rates = (round(read_bytes / read.seconds / 1e9, 1), round(copied_bytes / copied.seconds / 1e9, 1))
        levels.append(Level(loop.name, loop.capacity, *rates))
        alone = alone and read.alone and copied.alone
    progress(len(functions), len(functions))
    gflops = round(2 * row * _FMAS / fma.seconds / 1e9, 1)
    return Peak(_name(), threads, gflops, _falling(levels), alone, products, by)


@dataclass(frozen=True)
class _Loop:
    """How the probes of one level go over their data: `steps` rows of all threads, `repeats` times in a call."""

    name: str
    capacity: int | None
    steps: int
    repeats: int

    @staticmethod
    def over(name: str, capacity: int | None, probed: int, row_bytes: int) -> _Loop:
        """Measure over about `probed` bytes; a copy has half of them to read and half to write."""
        steps = max(1, probed // row_bytes)
        return _Loop(name, capacity, steps, max(1, _CALL_BYTES // (steps * row_bytes)))

    @property
    def half(self) -> int:
        """The rows that a copy reads."""
        return max(1, self.steps // 2)


def _sizes(threads: int) -> list[tuple[str, int | None, int]]:
    """(name, capacity for the threads, bytes to probe with) of each level: half of a cache, clear of the one before.

    A cache that is not much larger than those before it, as a shared one may be for a thread, is left out.
    """
    found: list[tuple[str, int | None, int]] = []
    before = 0
    for cache in machine.caches() or _USUAL:
        capacity = cache.size_bytes * (threads if cache.cores == 1 else 1)
        if capacity > 2 * before:
            probed = capacity // 2 if cache.level < 3 else min(capacity // 2, 4 * max(before, 1 << 20))
            found.append((f"L{cache.level}", capacity, probed))
            before = capacity
    least, most = _MEMORY_BYTES
    return [*found, ("memory", None, min(most, max(least, 4 * before)))]


def _falling(levels: list[Level]) -> tuple[Level, ...]:
    """No level is slower than the next: what a probe says against that is noise."""
    made: list[Level] = []
    for level in reversed(levels):
        read, copied = (made[0].read_gbps, made[0].copy_gbps) if made else (0.0, 0.0)
        made.insert(0, Level(level.name, level.size_bytes, max(level.read_gbps, read), max(level.copy_gbps, copied)))
    return tuple(made)


def _zeros(count: int, dtype: str = "float32") -> Any:
    return tvm.runtime.tensor(np.zeros(count, dtype))


@dataclass(frozen=True)
class _Best:
    """The shortest of several runs, and whether its threads had their cores for themselves."""

    seconds: float
    alone: bool


def _best(threads: int, run: Callable[[], Any]) -> _Best:
    """The best within the budget, which grows while no run was alone."""
    run()
    best = _Best(float("inf"), False)
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < (_BUDGET_S if best.alone else _MOST_BUDGET_S):
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        seconds = time.perf_counter() - wall
        if seconds < best.seconds:
            best = _Best(seconds, time.process_time() - cpu > _ALONE * threads * seconds)
        if spent > _BUDGET_S and best.alone:
            break
    return best


def vectors(by: tuple[str, ...] | None = None) -> tuple[int, Any]:
    """Return the float32 lanes of vectors of the `instructions` in `by` (this CPU's if None), and a target of these."""
    by = instructions() if by is None else by
    lanes = 16 if "avx512f" in by else 8 if "avx2" in by else 4
    return lanes, tvm.target.Target({"kind": "llvm", "mattr": [f"+{name}" for name in by]})
