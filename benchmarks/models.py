"""Whole models beside ONNX Runtime: `make bench`. One process, interleaved rounds, medians, ratio with its spread.

The models are the test zoo's, at full size with random weights, exported to ONNX; both sides run the same inputs on
the same number of threads, ONNX Runtime with all its graph optimizations.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "bert", "gpt2", "vit")
COLUMNS = ("model", "relaxc ms", "onnxruntime ms", "ratio", "p10 to p90", "compile s", "MiB", "largest error")


def measure(name: str, path: Path, threads: int, seconds: float) -> dict[str, Any]:
    """Compiles the model and times it beside ONNX Runtime, as one JSON object."""
    import service
    from service import frontend
    from service.runtime.bench import bench
    from service.runtime.inputs import random_inputs

    made = service.compile(path)
    session = service.load(made.path, threads=threads)
    inputs = random_inputs(session.signature)
    peer = frontend.reference(path, frontend.identify(path), threads=threads, fastest=True)
    report = bench(
        {"relaxc": partial(session, inputs), "onnxruntime": partial(peer, inputs)},
        baseline="onnxruntime",
        measure_s=2 * seconds,
    )
    verification = made.manifest.verification
    errors = [row["max_abs_error"] for row in verification["outputs"]] if isinstance(verification, dict) else []
    return {
        "model": name,
        "threads": threads,
        "target": made.manifest.target.name,
        "compile_s": round(sum(made.build_record["stages"].values()), 2),
        "size_bytes": sum(file.stat().st_size for file in made.files),
        "largest_error": max(errors, default=None),
        **report.to_dict(),
    }


def main() -> int:
    """Exports, compiles and times the models named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), help="families of tests/zoo")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="timed for each side of each model")
    arguments = parser.parse_args()
    from tests import zoo

    table = Table(*COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            path = zoo.export_onnx(name, Path(folder) / f"{name}.onnx", size="full")
            row = measure(name, path, arguments.threads, arguments.seconds)
            print(json.dumps(row), flush=True)
            times = {timing["name"]: timing["p50_ms"] for timing in row["timings"]}
            (ratio,) = row["ratios"]
            table.add_row(
                name,
                f"{times['relaxc']:.2f}",
                f"{times['onnxruntime']:.2f}",
                f"{ratio['median']:.3f}",
                f"{ratio['p10']:.3f} to {ratio['p90']:.3f}",
                f"{row['compile_s']:.1f}",
                f"{row['size_bytes'] / 2**20:.1f}",
                str(row["largest_error"]),
            )
            path.unlink()
    Console(stderr=True, width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
