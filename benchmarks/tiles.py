"""Products by AMX's tile registers beside those by vectors, and torch's: built here, run where a CPU has AMX.

    python -m benchmarks.tiles build FOLDER
    python -m benchmarks.tiles run FOLDER [--seconds 3] [--threads 2]

No development machine has AMX, so that kernels travel: `run` needs tvm_ffi and TVM's runtime library, and not TVM's
compiler. Each result is compared with float64 first. What is timed is called by turns, as neighbours take such a
machine's caches for minutes; the ratio is the median of the turns'. Give it cores of its own: `taskset -c 4,5`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tile_bounds import Gauge, build_gauge, require_tiles, timed

__all__ = ["build", "command", "drawn", "main", "run", "taken", "target_of_two_cores", "use_threads"]

SHAPES = ((128, 768, 768), (128, 768, 3072), (128, 3072, 768), (197, 768, 3072), (512, 1024, 1024))
"""Rows, depth, columns."""

OPERANDS = (("bfloat16", "bfloat16"), ("uint8", "int8"))
_CALLS = 3
"""Of one kernel, in a turn."""


def build(folder: Path) -> None:
    """Write the kernels, by the default plan of two cores of a Sapphire Rapids and by the best without tiles."""
    import tvm
    from tvm import te

    from relaxc.schedules.cpu import planning
    from relaxc.schedules.cpu.gemm import packed_plan
    from relaxc.schedules.dots import accumulator_of
    from relaxc.schedules.hardware import cpu_of
    from relaxc.schedules.operators import Matmul
    from relaxc.service.lowering import pipeline

    pipeline.register()
    target = target_of_two_cores()
    cpu, rule = cpu_of(target), planning.TEMPLATES["cpu.matmul_packed"]
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for operands in OPERANDS:
        total = accumulator_of(operands[1])
        for m, k, n in SHAPES:
            op = Matmul(m=m, n=n, k=k, operands=operands, accumulate=total, out=total)
            vectors = planning.planned(op, rule.name, packed_plan.default(op, cpu), cpu)
            for way, plan in (("tiles", planning.default(op, cpu)), ("vectors", vectors)):
                a = te.placeholder((m, k), operands[0], "a")
                b = te.placeholder(planning.packed_shape(plan, (k, n)), operands[1], "b")
                func = rule.emit(
                    te.create_prim_func([a, b, planning.computation(plan)(a, b)]), op, plan.parameters, cpu
                )
                name = f"{operands[0]}_{m}x{k}x{n}_{way}.so"
                tvm.compile(func, target, tir_pipeline=pipeline.NAME).export_library(str(folder / name))
                panel = plan.parameters["vectors"] * plan.parameters["block"], plan.parameters["dot"]
                rows.append({"library": name, "way": way, "operands": operands, "shape": (m, k, n), "panel": panel})
    build_gauge(folder)
    (folder / "kernels.json").write_text(json.dumps(rows))


def use_threads(threads: int) -> None:
    """Have kernels of ours and torch's run on so many threads. Call it before torch is loaded, whose threads else keep
    the cores for milliseconds after a call, as they wait for another: what is timed next took up to 20 times as long.
    """
    os.environ |= {"TVM_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    import torch

    torch.set_num_threads(threads)


def run(folder: Path, seconds: float, threads: int) -> None:
    """Print the medians of each product, and what other ways take of the tiles' time. Raise ValueError where one is
    wrong, and SystemExit where there is no AMX.
    """
    require_tiles()
    use_threads(threads)
    rows, gauge = json.loads((folder / "kernels.json").read_text()), Gauge(folder)
    for kind, shape in dict.fromkeys((row["operands"][0], tuple(row["shape"])) for row in rows):
        ways = _ways(folder, [row for row in rows if (row["operands"][0], tuple(row["shape"])) == (kind, shape)])
        size = "x".join(map(str, shape))
        print(f"{kind} {size}: {taken(ways, 'tiles', seconds, shape[0] * shape[1] * shape[2], gauge)}")


def taken(
    ways: dict[str, Callable[[], Any]], first: str, seconds: float, multiply_adds: int, gauge: Gauge | None
) -> str:
    """Call all by turns, for so long; return what the first takes, and the others of its time.

    Turns count in which the gauge fits; where it never does all count, and that is said. Torch is timed behind the
    others, in turns with the first.
    """
    ours = {way: call for way, call in ways.items() if not way.startswith("torch")}
    rest = {way: call for way, call in ways.items() if way == first or way not in ours}
    alone, fits = _turns(ours, seconds, gauge)
    beside, _ = _turns(rest, seconds / 2, None) if len(rest) > 1 else ({}, True)
    ratios = {way: _ratio(times, alone[first]) for way, times in alone.items() if way != first}
    ratios |= {way: _ratio(times, beside[first]) for way, times in beside.items() if way not in ours}
    others = ", ".join(f"{way} {ratio:.2f}" for way, ratio in ratios.items())
    middle, turns = statistics.median(alone[first]), f"{len(alone[first])} turns{'' if fits else ', short of power'}"
    return f"{1e6 * middle:.0f} µs, {2e-9 * multiply_adds / middle:.0f} GOP/s; {others} ({turns})"


def _turns(
    ways: dict[str, Callable[[], Any]], seconds: float, gauge: Gauge | None
) -> tuple[dict[str, list[float]], bool]:
    """The seconds of each in the turns that the gauge fits, or in all and False."""
    turns: list[list[tuple[float, bool]]] = []
    until = time.perf_counter() + seconds
    while not turns or time.perf_counter() < until:
        turns.append([timed(call, _CALLS, gauge) for call in ways.values()])
    fitting = [turn for turn in turns if all(fits for _, fits in turn)]
    columns = zip(*(fitting or turns), strict=True)
    return {way: [took for took, _ in each] for way, each in zip(ways, columns, strict=True)}, bool(fitting)


def _ratio(times: Sequence[float], first: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(times, first, strict=True))


def target_of_two_cores() -> Any:
    """Return that of two cores of a Sapphire Rapids."""
    from relaxc.service.lowering.target import resolve, to_tvm

    spec = resolve("sapphirerapids").to_dict()
    kept = {name: spec[name] for name in ("kind", "mcpu", "features")}
    return to_tvm(resolve(json.dumps({**kept, "name": "sapphirerapids", "cores": 2})))


def _ways(folder: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Callable[[], Any]]:
    """The calls that compute a product, of operands of their own; ours are right."""
    import torch

    from relaxc.service.runtime.library import load_library

    (m, k, n), (left, _) = rows[0]["shape"], rows[0]["operands"]
    a, b = drawn(left, (m, k), (k, n))
    want = a.double() @ b.double()
    found: dict[str, Callable[[], Any]] = {}
    for row in rows:
        width, dot = row["panel"]
        filled = torch.nn.functional.pad(b, (0, -n % width))
        packed = filled.reshape(k // dot, dot, -1, width).permute(2, 0, 3, 1).contiguous()
        out = torch.empty(m, n, dtype=torch.float32 if left == "bfloat16" else torch.int32)
        kernel = load_library(folder / row["library"])["main"]
        kernel(a, packed, out)
        if float((out - want).abs().max()) > (2e-6 * k if left == "bfloat16" else 0):
            raise ValueError(f"{row['library']} computes something else")
        found[row["way"]] = partial(kernel, a, packed, out)
    if left == "bfloat16":
        weight, into = b.t().contiguous(), torch.empty(m, n).bfloat16()
        found["torch linear"] = partial(torch.nn.functional.linear, a, weight)
        found["torch mm"] = partial(torch.mm, a, b, out=into)
    return found


def drawn(dtype: str, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[Any, Any]:
    """Return random operands of these shapes: bfloat16, or else uint8 and int8."""
    import torch

    random = torch.Generator().manual_seed(0)
    if dtype == "bfloat16":
        return torch.randn(left, generator=random).bfloat16(), torch.randn(right, generator=random).bfloat16()
    unsigned = torch.randint(0, 256, left, generator=random).to(torch.uint8)
    return unsigned, torch.randint(-128, 128, right, generator=random).to(torch.int8)


def command(
    description: str, build: Callable[[Path], None], run: Callable[[Path, float, int], None], seconds: float, of: str
) -> None:
    """Read the command line of a benchmark whose kernels are built, and run elsewhere for `seconds` each."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("step", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=seconds, help=f"of each {of}")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.step == "build":
        build(arguments.folder)
    else:
        run(arguments.folder, arguments.seconds, arguments.threads)


def main() -> None:
    """Read the command line."""
    command(__doc__, build, run, 3.0, "product")


if __name__ == "__main__":
    main()
