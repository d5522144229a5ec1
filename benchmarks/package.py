"""A package's program beside the Python runtime, by turns: latency, load to the first result, equal numbers.

    python -m benchmarks.package resnet50 --rounds 9

Each turn is a process of its own on the same artifact and inputs, which is in the page cache; `cold` is after it was
dropped from it. The ratio is of the medians of turns; beside it is the range of those of each round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["compare", "main"]

_PYTHON = """
import json, sys, time
import numpy as np
from relaxc.service.runtime import load
path, folder, runs, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) or None
given = json.loads(sys.argv[5])
start = time.perf_counter()
session = load(path, threads=threads)
load_s = time.perf_counter() - start
inputs = {name: np.load(file) for name, file in given.items()}
def once():
    start = time.perf_counter()
    found = session(inputs)
    return time.perf_counter() - start, found
first_s, found = once()
run_s = [once()[0] for _ in range(runs)]
for index, array in enumerate(found.values()):
    np.save(f"{folder}/{index}.npy", array)
print(json.dumps({"load_s": load_s, "first_s": first_s, "run_s": run_s}))
"""

SIDES = ("native", "python")


def compare(
    package: Path, inputs: dict[str, Path], folder: Path, *, rounds: int, runs: int, threads: int = 0
) -> dict[str, Any]:
    """Return what both did, by side: rows of each round, whether their outputs were equal, and the ratios."""
    rows: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 else SIDES[::-1]:
            rows[side].append(_turn(side, package, inputs, folder / side, runs, threads))
    cold = {side: _turn(side, package, inputs, folder / side, 0, threads, cold=True) for side in SIDES}
    times = {side: [statistics.median(row["run_s"]) for row in rows[side]] for side in SIDES}
    ratios = [native / python for native, python in zip(times["native"], times["python"], strict=True)]
    return {
        "equal": _equal(folder),
        "ratio": statistics.median(times["native"]) / statistics.median(times["python"]),
        "ratios": ratios,
        "median_s": {side: statistics.median(times[side]) for side in SIDES},
        "first_result_s": {side: statistics.median(_first(row) for row in rows[side]) for side in SIDES},
        "load_s": {side: statistics.median(row["load_s"] for row in rows[side]) for side in SIDES},
        "cold_first_result_s": {side: _first(cold[side]) for side in SIDES},
    }


def _first(row: dict[str, Any]) -> float:
    return float(row["load_s"] + row["first_s"])


def _turn(
    side: str, package: Path, inputs: dict[str, Path], out: Path, runs: int, threads: int, *, cold: bool = False
) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    artifact = package / "model.so"
    if cold:
        _drop(artifact)
    if side == "native":
        given = [word for name, file in inputs.items() for word in ("--input", f"{name}={file}")]
        options = [
            "--runs",
            str(runs),
            "--outputs",
            str(out),
            "--json",
            *(["--threads", str(threads)] if threads else []),
        ]
        command = [str(package / "bin/relaxc-run"), str(artifact), *given, *options]
    else:
        files = json.dumps({name: str(file) for name, file in inputs.items()})
        command = [sys.executable, "-c", _PYTHON, str(artifact), str(out), str(runs), str(threads), files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def _drop(path: Path) -> None:
    """Drop the file from the page cache, where nobody has it mapped."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _equal(folder: Path) -> bool:
    files = {side: sorted((folder / side).glob("*.npy")) for side in SIDES}
    arrays = {side: [np.load(file).tobytes() for file in files[side]] for side in SIDES}
    return arrays["native"] == arrays["python"] and bool(arrays["native"])


def _prepared(model: str, folder: Path) -> tuple[Path, dict[str, Path]]:
    """The package of a model of the zoo at full size, and its inputs as files."""
    import relaxc
    from benchmarks.peers.cases import Case
    from benchmarks.peers.files import export, onnx_path, read_inputs
    from relaxc.service.packaging.package import make_package

    case = Case(model)
    folder.mkdir(parents=True, exist_ok=True)
    export(case, folder)
    relaxc.compile(onnx_path(case, folder), output=folder / "out.so")
    shutil.rmtree(folder / "package", ignore_errors=True)
    made = make_package(folder / "out.so", folder / "package")
    inputs = {}
    for name, array in read_inputs(folder).items():
        inputs[name] = folder / f"{name}.npy"
        np.save(inputs[name], array)
    print(f"{model}: {made.size_bytes / 2**20:.1f} MiB beside {made.weights_bytes / 2**20:.1f} MiB of weights")
    return made.folder, inputs


def main(words: list[str] | None = None) -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="resnet50", help="of tests/zoo")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--runs", type=int, default=30, help="timed runs of each turn")
    parser.add_argument("--threads", type=int, default=0, help="0: this process's cores")
    parser.add_argument("--folder", type=Path, default=Path("build/package"))
    args = parser.parse_args(words)
    folder = args.folder.resolve() / args.model
    package, inputs = _prepared(args.model, folder)
    found = compare(package, inputs, folder / "out", rounds=args.rounds, runs=args.runs, threads=args.threads)
    print(f"numbers {'equal to the bit' if found['equal'] else 'DIFFERENT'}")
    for name in ("median_s", "load_s", "first_result_s", "cold_first_result_s"):
        shown = ", ".join(f"{side} {found[name][side] * 1e3:.2f} ms" for side in SIDES)
        print(f"{name.removesuffix('_s').replace('_', ' '):<18} {shown}")
    low, high = min(found["ratios"]), max(found["ratios"])
    print(f"latency ratio      {found['ratio']:.3f} (rounds {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
