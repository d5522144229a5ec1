"""How long `relaxc compile` takes: cold, with the kernels cached, and with other weights; ours beside another checkout.

    python -m benchmarks.compile resnet50 bert --rounds 3 --beside before

Each compile is a process of its own. `cold` has an empty store, `again` all kernels and no artifact,
`weights` the kernels of the same model with other weights. Sides take turns; the ratio is of the medians. Where the
machine is busy, the processors' seconds (`cpu`) say more than the clock's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import zoo

__all__ = ["MODELS", "Took", "main"]

MODELS = ("resnet50", "bert", "vit", "efficientnet", "mobilenet_v2", "gpt2")
WAYS = ("cold", "again", "weights")
_OURS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Took:
    """One compile: the clock's seconds, those of all processors, and what the build record says of stages and steps."""

    model: str
    way: str
    side: str
    wall_s: float
    cpu_s: float
    stages: dict[str, float]
    steps: dict[str, float]


def _compiled(side: str, checkout: Path, model: Path, way: str, cache: Path) -> Took:
    """Compiles by a command, as a user does."""
    out = cache / "model.so"
    command = [sys.executable, "-P", "-m", "service", "compile", str(model), "-o", str(out), "--force", "--json"]
    environment = {**os.environ, "RELAXC_CACHE_DIR": str(cache), "PYTHONPATH": str(checkout)}
    start = time.perf_counter()
    with (cache / "out.json").open("w+b") as told:
        process = subprocess.Popen(command, cwd=cache, env=environment, stdout=told)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}")
        told.seek(0)
        build: dict[str, Any] = json.load(told)["build"]
    cpu_s = used.ru_utime + used.ru_stime
    return Took(model.name.partition(".")[0], way, side, wall_s, cpu_s, build["stages"], build.get("timings", {}))


def _round(models: Sequence[tuple[Path, Path]], sides: dict[str, Path], folder: Path) -> Iterator[Took]:
    for model, other in models:
        for side, checkout in sides.items():
            cache = Path(tempfile.mkdtemp(dir=folder))
            try:
                yield _compiled(side, checkout, model, "cold", cache)
                yield _compiled(side, checkout, model, "again", cache)
                yield _compiled(side, checkout, other, "weights", cache)
            finally:
                shutil.rmtree(cache)


def _exported(name: str, size: zoo.Size, folder: Path) -> tuple[Path, Path]:
    """The model with two sets of weights."""
    paths = folder / f"{name}.onnx", folder / f"{name}.other.onnx"
    for seed, path in enumerate(paths):
        zoo.write_onnx(zoo.build(name, size=size, seed=seed), path)
    return paths


def _print(took: Sequence[Took], sides: Sequence[str]) -> None:
    def median(model: str, way: str, side: str, field: str) -> float:
        return statistics.median(
            getattr(each, field) for each in took if (each.model, each.way, each.side) == (model, way, side)
        )

    print(
        f"{'model':<16}{'':<9}"
        + "".join(f"{side + ' s':>11}{'cpu s':>8}" for side in sides)
        + f"{'build s':>9}  of cold"
    )
    for model in dict.fromkeys(each.model for each in took):
        base = median(model, "cold", sides[-1], "wall_s"), median(model, "cold", sides[-1], "cpu_s")
        for way in WAYS:
            row = [(median(model, way, side, "wall_s"), median(model, way, side, "cpu_s")) for side in sides]
            build = statistics.median(
                each.stages["build"] for each in took if (each.model, each.way, each.side) == (model, way, sides[0])
            )
            ratio = f"{row[0][0] / base[0]:.2f} ({row[0][1] / base[1]:.2f} cpu)"
            cells = "".join(f"{wall:>11.2f}{cpu:>8.2f}" for wall, cpu in row)
            print(f"{model:<16}{way:<9}{cells}{build:>9.2f}  {ratio}")


def main() -> None:
    """Print the table, and write each compile with its stages and steps to `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--beside", type=Path, help="another checkout of relaxc, which the ratios are to")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    arguments = parser.parse_args()
    sides = {"ours": _OURS} | ({"beside": arguments.beside.absolute()} if arguments.beside else {})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = [_exported(model, arguments.size, folder) for model in arguments.models]
        took = [each for _ in range(arguments.rounds) for each in _round(models, sides, folder)]
    _print(took, list(sides))
    if arguments.json:
        rows = [{field: getattr(each, field) for field in Took.__slots__} for each in took]
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
