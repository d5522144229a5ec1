"""Times products with weights of 4 and 8 bits beside the memory, and decoding steps beside float32.

    python -m benchmarks.weights                    kernels, then models
    python -m benchmarks.weights kernels --threads 2
    python -m benchmarks.weights models --only llama

The limit of a kernel is the bytes of its packed weights over the bandwidth of a loop that reads, which takes turns with
it; `of a call` is beside a call that reads as many bytes and does nothing else. Models are of drawn weights, compiled
in float32 and with --weights, verified, and run in turns.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from relaxc.service.runtime.threads import default_threads

_ROUNDS = 15


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.weights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", metavar="WHAT", help="kernels, models; both by default")
    parser.add_argument("--only", default="", metavar="TEXT", help="shapes or models whose name has this")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="turns; medians are of these")
    return parser


def kernels(arguments: argparse.Namespace) -> Table:
    """Return a row for each shape and number of bits."""
    from benchmarks.weights.kernels import SHAPES, timed

    table = Table("product", "bits", "MB", "limit us", "us", "GB/s", "of bandwidth", "of a call")
    table.title = "one row, from memory"
    for depth, columns in SHAPES:
        name = f"1x{depth} {depth}x{columns}"
        for bits in (4, 8) if arguments.only in name else ():
            row = timed(depth, columns, bits, arguments.threads, arguments.rounds)
            numbers = (row.size_bytes / 1e6, row.limit * 1e6, row.seconds * 1e6, row.gbps)
            table.add_row(
                name,
                str(bits),
                *(f"{number:.1f}" for number in numbers),
                f"{row.of_bandwidth:.2f}",
                f"{row.of_call:.2f}",
            )
    return table


def models(arguments: argparse.Namespace) -> Table:
    """Return a row for each model and what its weights are."""
    from benchmarks.weights.decoders import MODELS

    table = Table("step", "weights", "MB", "ms", "of fp32", "from the model", title="a token, cache of 512")
    for name, shape in MODELS.items():
        if arguments.only in name:
            with tempfile.TemporaryDirectory(prefix="relaxc-weights-") as folder:
                _model(table, name, shape, Path(folder), arguments)
    return table


def _model(table: Table, name: str, shape: Any, folder: Path, arguments: argparse.Namespace) -> None:
    import torch

    from benchmarks.weights.decoders import Step, inputs

    torch.manual_seed(0)
    given = inputs(shape)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(Step(shape).eval(), given), folder / "step.pt2")
    sessions = {weights: _compiled(folder, weights) for weights in (None, "int8", "int4")}
    times: dict[Any, list[float]] = {weights: [] for weights in sessions}
    for _ in range(arguments.rounds):
        for weights, session in sessions.items():
            values = dict(zip((each.name for each in session.signature.inputs), map(np.asarray, given), strict=True))
            times[weights].append(_seconds(session, values))
    whole = median(times[None])
    for weights, session in sessions.items():
        took = median(times[weights])
        size = session.manifest.passes["weight_bytes"] / 1e6
        row = (weights or "fp32", f"{size:.0f}", f"{took * 1e3:.2f}", f"{whole / took:.2f} x")
        table.add_row(name, *row, _distance(session.manifest.verification))


def _compiled(folder: Path, weights: Any) -> Any:
    from relaxc.service.compiler import prepare, run
    from relaxc.service.request import CompileOptions
    from relaxc.service.runtime.loading import load

    out = folder / str(weights)
    out.mkdir()
    options = replace(CompileOptions(), weights=weights)
    run(prepare(folder / "step.pt2", options=options), out, lambda event: None)
    return load(next(out.glob("*.so")))


def _seconds(session: Any, values: Mapping[str, Any]) -> float:
    """The median of a few runs, the first of which brings its weights."""
    import time

    session(values)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        session(values)
        taken.append(time.perf_counter() - start)
    return median(taken)


def _distance(verification: Any) -> str:
    rows = [row["unrounded"] for row in verification["outputs"] if row.get("unrounded")]
    if not rows:
        return ""
    worst = max(rows, key=lambda row: float(row["error"]))
    return f"{worst['error']:.3f} rms, cosine {worst['cosine']:.5f}"


def main() -> None:
    """Print the tables that the command line asks for."""
    arguments = _parser().parse_args()
    console = Console()
    for what in arguments.what or ("kernels", "models"):
        console.print({"kernels": kernels, "models": models}[what](arguments))


if __name__ == "__main__":
    main()
