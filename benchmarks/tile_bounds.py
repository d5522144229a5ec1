"""What bounds a product by AMX's tile registers: the same code on operands from nowhere, L1, L2 and L3.

    python -m benchmarks.tile_bounds build FOLDER
    python -m benchmarks.tile_bounds run FOLDER [--seconds 20]

As `benchmarks.tiles`, kernels travel, and `run` wants two cores of its own. Each thread has its operands, and no result
leaves it: what is missing from here to a product of `benchmarks.tiles` is an epilogue and the writing of its result.

Such a machine may lack the power: with zeros an instruction took 5.6 ns at any time, with numbers 7.0 or, for seconds,
13 to 21, while the clock stood. So all these benchmarks run a loop of instructions on numbers before and behind what
they time, and tell whether it took more than a quarter longer than it can.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from relaxc.schedules.dots import Dot
    from relaxc.schedules.ir.types import PrimFunc

__all__ = ["BOUNDS", "Bound", "Gauge", "build", "build_gauge", "main", "require_tiles", "run", "timed"]

THREADS = 2
_GAUGE = "gauge.so"
_FIRST, _AS_FAST = 1_000, 1.25
"""Runs of the gauge that find its least time, and how much more is as fast."""

_SUMS = (2, 2)
_SIDE = 32
"""Rows and columns of a tile."""


@dataclass(frozen=True)
class Bound:
    """Tiles of 32 rows by panels of 32 columns, `steps` of the instruction deep, `repeats` times; no steps: registers.

    These hold numbers unless they are `empty`. With `ahead` each tile fetches its part of the panel behind its own.
    """

    name: str
    steps: int
    tiles: int
    panels: int
    repeats: int
    ahead: bool = False
    empty: bool = False

    @property
    def instructions(self) -> int:
        """How many each thread executes."""
        return 4 * max(self.steps, 1) * self.tiles * self.panels * self.repeats


BOUNDS = (
    Bound("registers", steps=0, tiles=1, panels=1, repeats=1_000),
    Bound("registers of zeros", steps=0, tiles=1, panels=1, repeats=1_000, empty=True),
    Bound("L1", steps=8, tiles=1, panels=1, repeats=500),
    Bound("L2, 128x768x32 again and again", steps=24, tiles=4, panels=1, repeats=100),
    Bound("L3, 128x768x3072 without results", steps=24, tiles=4, panels=48, repeats=2),
    Bound("the same, fetched ahead", steps=24, tiles=4, panels=48, repeats=2, ahead=True),
)


def kernel(bound: Bound, dot: Dot) -> PrimFunc:
    """Return `f(a[thread, tiles * 32, k], b[thread, panel, k / 2, 32, 2], c[thread, 32, 32])` of a bound."""
    from tvm import te, tirx

    from relaxc.schedules.cpu.common import matrix_code as code
    from relaxc.schedules.ir.statements import block, call, loop, sequence, with_code

    steps = max(bound.steps, 1)
    ahead = -(-dot.m // bound.tiles) if bound.ahead else 0
    walk = code.rows_by_panel(steps, _SUMS[1])
    name, text = code.product(dot, _SUMS, walk, dot.m, ahead * _SUMS[1]) if bound.steps else _registers(dot)
    pieces = dict([code.configuration(_SUMS, (dot.m,) * 2), code.release(), _loaded(), (name, text)])
    begin, end, fill, _ = pieces
    left = te.placeholder((THREADS, bound.tiles * _SIDE, steps * dot.k), "bfloat16", "a")
    right = te.placeholder((THREADS, bound.panels, steps * dot.m, _SIDE, 2), "bfloat16", "b")
    sums = te.compute(
        (THREADS, _SIDE, _SIDE), lambda t, m, n: (left[t, m, 0] * right[t, 0, 0, n, 0]).astype("float32"), name="c"
    )
    func = te.create_prim_func([left, right, sums.op.output(0)])
    a, b, c = func.params
    at = tirx.BufferLoad

    def tile(thread: Any, panel: Any, row: Any) -> Any:
        rows = [at(a, [thread, row * _SIDE + i * dot.m, 0]) for i in range(_SUMS[0])]
        ahead_of = [at(b, [thread, panel + 1, row * ahead * steps, 0, 0])] if ahead else []
        pointers = [at(c, [thread, 0, 0]), at(b, [thread, panel, 0, 0, 0]), *rows, *ahead_of]
        return call(name, *map(tirx.address_of, pointers)) if bound.steps else call(name)

    def task(thread: Any) -> Any:
        tiles = loop(
            bound.panels, lambda panel: loop(bound.tiles, lambda row: tile(thread, panel, row), name="m"), name="n"
        )
        operands = [at(b, [thread, 0, 0, 0, 0]), at(a, [thread, 0, 0]), at(a, [thread, dot.m, 0])]
        filled = [] if bound.steps or bound.empty else [call(fill, *map(tirx.address_of, operands))]
        return sequence(call(begin), *filled, loop(bound.repeats, lambda _: tiles, name="again"), call(end))

    body = loop(THREADS, task, tirx.ForKind.PARALLEL, "thread")
    return func.with_body(block("root", with_code(code.declarations(dot) + "".join(pieces.values()), body), []))


def _loaded() -> tuple[str, str]:
    """Name and code of `f(b, a0, a1)`, which loads the operands of a step."""
    name = "relaxc_tiles_loaded"
    loads = [(4, "a0", 64), (5, "a1", 64), (6, "b", 128), (7, "b", 128)]
    lines = [f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr %{at}, i64 {row})" for register, at, row in loads]
    return name, "\n".join([f"define i32 @{name}(ptr %b, ptr %a0, ptr %a1) {{", *lines, "  ret i32 0", "}", ""])


def _registers(dot: Dot) -> tuple[str, str]:
    """Name and code of one step without its loads."""
    name = "relaxc_tiles_registers"
    products = [f"  call void @{dot.intrinsic}(i8 {2 * i + j}, i8 {4 + i}, i8 {6 + j})" for i in (0, 1) for j in (0, 1)]
    return name, "\n".join([f"define i32 @{name}() {{", *products, "  ret i32 0", "}", ""])


def build(folder: Path) -> None:
    """Write a library for each bound, and `bounds.json`, which says what they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, bound in enumerate(BOUNDS):
        _export(bound, folder / f"bound{index}.so")
    build_gauge(folder)
    (folder / "bounds.json").write_text(json.dumps([asdict(bound) for bound in BOUNDS]))


def build_gauge(folder: Path) -> None:
    """Write what `Gauge` runs, for two cores of a Sapphire Rapids."""
    _export(BOUNDS[0], folder / _GAUGE)


def _export(bound: Bound, path: Path) -> None:
    import tvm

    from relaxc.schedules.hardware import cpu_of
    from relaxc.service.lowering import pipeline
    from relaxc.service.lowering.target import resolve, to_tvm

    pipeline.register()
    target = to_tvm(resolve("sapphirerapids"))
    (dot,) = (dot for dot in cpu_of(target).dots if dot.in_tiles and dot.operands == ("bfloat16", "bfloat16"))
    tvm.compile(kernel(bound, dot), target, tir_pipeline=pipeline.NAME).export_library(str(path))


class Gauge:
    """Tells whether both threads may multiply at full speed: by instructions on registers."""

    def __init__(self, folder: Path) -> None:
        self._run = _call(folder / _GAUGE, BOUNDS[0])
        self._least = min(self._seconds() for _ in range(_FIRST))

    def _seconds(self) -> float:
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start

    def fits(self) -> bool:
        """Return whether they may now."""
        seconds = self._seconds()
        self._least = min(self._least, seconds)
        return seconds < _AS_FAST * self._least


def require_tiles() -> None:
    """Raise SystemExit where there is no AMX, and have the kernel grant it where there is."""
    from relaxc.service import machine

    if "amx-tile" not in machine.cpu().features:
        raise SystemExit("this CPU has no AMX, or the kernel refuses it")


def timed(call: Callable[[], Any], calls: int, gauge: Gauge | None) -> tuple[float, bool]:
    """Return the seconds of one of so many calls, and whether the gauge fits before and behind them."""
    fits = gauge is None or gauge.fits()
    call()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls, fits and (gauge is None or gauge.fits())


def _call(library: Path, bound: Bound) -> Callable[[], Any]:
    """What runs a bound once, on operands of its own."""
    import torch

    from relaxc.service.runtime.library import load_library

    depth = 32 * max(bound.steps, 1)
    a = torch.randn(THREADS, bound.tiles * _SIDE, depth).bfloat16()
    b = torch.randn(THREADS, bound.panels, depth // 2, _SIDE, 2).bfloat16()
    return partial(load_library(library)["main"], a, b, torch.empty(THREADS, _SIDE, _SIDE))


def run(folder: Path, seconds: float) -> None:
    """Print each bound's part of the rate on registers: of the least times, and in the middle.

    Raise SystemExit where there is no AMX.
    """
    require_tiles()
    os.environ["TVM_NUM_THREADS"] = str(THREADS)  # before its first kernel
    bounds = [Bound(**each) for each in json.loads((folder / "bounds.json").read_text())]
    calls = [_call(folder / f"bound{index}.so", bound) for index, bound in enumerate(bounds)]
    taken: list[list[float]] = [[] for _ in bounds]
    gauge, until = Gauge(folder), time.perf_counter() + seconds
    while time.perf_counter() < until:
        for bound, call, times in zip(bounds, calls, taken, strict=True):
            found, fits = timed(call, 1, gauge)
            times += [found / bound.instructions] if fits else []
    if not all(taken):
        raise SystemExit("the machine lacked the power all the time")
    for bound, times in zip(bounds, taken, strict=True):
        least, middle = min(taken[0]) / min(times), statistics.median(taken[0]) / statistics.median(times)
        print(f"{bound.name}: {least:.2f} at best, {middle:.2f} in the middle of {len(times)}")
    print(f"an instruction takes {1e9 * min(taken[0]):.2f} ns")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    if arguments.step == "build":
        build(arguments.folder)
    else:
        run(arguments.folder, arguments.seconds)


if __name__ == "__main__":
    main()
