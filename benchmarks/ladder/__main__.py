"""Times a product and a convolution at each step of scheduling, beside the machine's peak.

python -m benchmarks.ladder --out docs/images/ladder.png
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ladder import conv, gemm
from benchmarks.ladder.rung import Array, Rung, time_ms
from relaxc.schedules.hardware import cpu_of
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.runtime.peak import Peak, peak
from relaxc.service.runtime.threads import default_threads, use_threads

TOLERANCE = 2e-5
"""Of the largest value: sums are made in another order at each step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rung, timed: GFLOP/s of the direct count, and the share of the peak of all threads."""

    ladder: str
    rung: str
    what: str
    ms: float
    gflops: float
    of_peak: float
    how: str


def climb(name: str, rungs: list[Rung], want: Array, flops: int, top: Peak, console: Console) -> list[Step]:
    """Each rung built, compared and timed. AssertionError where a number is wrong."""
    steps = []
    for rung in rungs:
        console.print(f"[dim]{name}: {rung.name}")
        built = rung.build()
        built.run()
        error = float(np.abs(built.result() - want).max() / np.abs(want).max())
        assert error <= TOLERANCE, f"{name}, {rung.name}: off by {error:.2g} of the largest value"
        ms = time_ms(built.run)
        gflops = flops / ms / 1e6
        steps.append(Step(name, rung.name, rung.what, round(ms, 4), round(gflops, 2), gflops / top.gflops, built.how))
    return steps


def table_of(name: str, steps: list[Step], top: Peak) -> Table:
    """A ladder as a table."""
    table = Table(title=f"{name}; the peak of {top.threads} threads is {top.gflops:.0f} GFLOP/s", title_justify="left")
    for head in ("", "ms", "GFLOP/s", "of peak", "what is new"):
        table.add_column(head, justify="right" if head in ("ms", "GFLOP/s", "of peak") else "left")
    for step in steps:
        said = f"{step.what}: {step.how}" if step.how else step.what
        table.add_row(step.rung, f"{step.ms:.3f}", f"{step.gflops:.1f}", f"{step.of_peak:.1%}", said)
    return table


def draw(ladders: dict[str, list[Step]], top: Peak, path: Path) -> None:
    """Writes the ladders as bars, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, plots = pyplot.subplots(
        1, len(ladders), figsize=(5.5 * len(ladders), 3.4), layout="constrained", squeeze=False
    )
    for axes, (name, steps) in zip(plots[0], ladders.items(), strict=True):
        colours = ["#2c7fb8" if not step.how else "#c0392b" for step in steps]
        bars = axes.barh(
            [step.rung for step in steps][::-1], [step.gflops for step in steps][::-1], color=colours[::-1]
        )
        axes.bar_label(bars, [f" {step.gflops:.3g}" for step in steps][::-1], fontsize=8)
        axes.axvline(top.gflops, color="black", linewidth=0.8, linestyle="--")
        axes.set_xscale("log")
        axes.set_xlim(right=top.gflops * 6)
        axes.set_xlabel(f"GFLOP/s, {top.threads} threads; dashed: the peak of {top.gflops:.0f}")
        axes.set_title(name, loc="left", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ladder", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gemm", type=int, nargs=3, default=(128, 768, 3072), metavar=("M", "K", "N"))
    parser.add_argument("--conv", type=int, nargs=2, default=(64, 56), metavar=("CHANNELS", "SIZE"))
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--out", type=Path, help="the plot, as PNG")
    arguments = parser.parse_args(argv)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)
    top, cpu = peak(arguments.threads), cpu_of(to_tvm(resolve("auto")))
    use_threads(arguments.threads)
    rng = np.random.default_rng(0)
    m, k, n = arguments.gemm
    channels, size = arguments.conv
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    x = rng.standard_normal((1, channels, size, size), np.float32)
    w = rng.standard_normal((channels, channels, 3, 3), np.float32)
    todo = {
        f"GEMM {m}x{k}x{n}": (gemm.rungs(a, b, cpu), gemm.want(a, b), gemm.flops(m, k, n)),
        f"convolution {channels} to {channels}, 3x3, {size}x{size}": (
            conv.rungs(x, w, cpu),
            conv.want(x, w),
            conv.flops(x, w),
        ),
    }
    ladders = {name: climb(name, *task, top, console) for name, task in todo.items()}
    for name, steps in ladders.items():
        for step in steps:
            print(json.dumps(asdict(step)), flush=True)
        console.print(table_of(name, steps, top))
    if arguments.out:
        draw(ladders, top, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
