"""`relaxc run`: an artifact on inputs from a file, or on random ones."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli.arrays import write_npz
from relaxc.service.cli.options import Artifact, Json, Seed, Threads, Verbose
from relaxc.service.cli.output import console, print_json, seconds, table
from relaxc.service.cli.session import Dims, Inputs, choose_inputs, open_session

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["run"]


class Fill(StrEnum):
    """What inputs that no file gives are filled with."""

    RANDOM = "random"


def run(
    artifact: Artifact,
    inputs: Inputs = None,
    outputs: Annotated[
        Path | None, typer.Option("--outputs", "-o", metavar="OUT.npz", help="Write the outputs there, by name.")
    ] = None,
    fill: Annotated[
        Fill | None,
        typer.Option("--fill", metavar="random", help="Fill inputs that are not given with random numbers."),
    ] = None,
    dim: Dims = None,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run an artifact once, and show or write its outputs, in the model's order.

    numpy has no bfloat16, and no floats of 8 and integers of 4 and 2 bits: .npz files hold them raw (dtype V2 or V1).
    """
    import time

    session = open_session(artifact, threads)
    values = choose_inputs(session.signature, inputs, dim, seed, fill=fill is not None)
    start = time.perf_counter()
    results = session(values)
    took_s = time.perf_counter() - start
    if outputs:
        write_npz(outputs, results)
    rows = _rows(results)
    if json:
        ran = session.manifest.target.name
        print_json({"outputs": rows, "seconds": took_s, "file": str(outputs) if outputs else None, "target": ran})
        return
    shown = table("", "output", "dtype", "shape", "min", "mean", "max", "NaN or Inf", numbers=_NUMBERS)
    for row in rows:
        numbers = ("" if row[name] is None else f"{row[name]:.6g}" for name in ("min", "mean", "max"))
        shown.add_row(row["name"], row["dtype"], str(row["shape"]), *numbers, str(row["nonfinite"]))
    console().print(shown)
    print(f"first run took {seconds(took_s)}" + (f"; outputs are in {outputs}" if outputs else ""))


_NUMBERS = ("min", "mean", "max", "NaN or Inf")


def _rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Facts of each output; min, mean and max are over the finite elements, None where there are none."""
    import numpy as np

    rows = []
    for name, array in results.items():
        values = array.astype(np.float64)
        finite = values[np.isfinite(values)]
        low, mean, high = (float(f(finite)) if finite.size else None for f in (np.min, np.mean, np.max))
        rows.append(
            {
                "name": name,
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "min": low,
                "mean": mean,
                "max": high,
                "nonfinite": int(values.size - finite.size),
            }
        )
    return rows
