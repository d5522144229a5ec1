"""How long `relaxc compile` takes: cold, with the kernels cached, with other weights and at another batch size; ours
beside another checkout.

    python -m benchmarks.compile resnet50 bert --rounds 3 --beside before
    until python -m benchmarks.compile --beside before --folder models --json took.json --limit 120; do :; done
    python -m benchmarks.compile bert bert,bf16 bert,int8 --ways cold

Cases are those of `benchmarks.peers`: `NAME,bf16` is compiled with `--precision bf16`, `NAME,int8` was made by ONNX
Runtime's quantizer; beside the model in float32, where that is timed too, `of float32` is their time over its own.

Each compile is a process of its own. `cold` has an empty store, `again` all kernels and no artifact,
`weights` the kernels of the same model with other weights, and `batch`, at twice the batch size, those of the model,
beside `batch-cold`, which has none. Sides take turns; ratios are of medians, to the other side's `cold` or
`batch-cold`, which is all that it compiles: it may be older than the kernel cache. Where the machine is busy, the
processors' seconds (`cpu`) say more than the clock's. The first compile of each side is not counted: it writes Python's
bytecode.

`--json` is written after each round of a model, and what it has is not run again. With `--limit` no such round begins
after that many seconds; the status is 75 then, and the same command goes on.

With `--memory` the peak of what all processes of a cold compile hold, looked at every 20 ms, takes the place of times,
with the size of the artifact.
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
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import files
from benchmarks.peers.cases import Case, parse
from benchmarks.peers.quantize import quantize
from benchmarks.peers.runtimes.relaxc_other import program
from relaxc.service.process.quota import memory_bytes
from tests import zoo

__all__ = ["MODELS", "Took", "main"]

MODELS = ("resnet50", "bert", "vit", "efficientnet", "mobilenet_v2", "gpt2")
WAYS = ("cold", "again", "weights", "batch")
_BATCH_COLD = "batch-cold"
_OURS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class _Model:
    """What is compiled: a case, and its files: with other weights, and at twice the batch size, if that is timed."""

    case: Case
    path: Path
    other: Path
    batch: Path

    def path_of(self, way: str) -> Path:
        """The file that is compiled."""
        return self.other if way == "weights" else self.batch if way.startswith("batch") else self.path

    @property
    def plain(self) -> str:
        """The label of the case in float32."""
        return replace(self.case, quantized=False, precision=None).label


@dataclass(frozen=True, slots=True)
class Took:
    """One compile: the clock's seconds, those of all processors, and what the build record says of stages and steps."""

    round: int
    model: str
    way: str
    side: str
    wall_s: float
    cpu_s: float
    stages: dict[str, float]
    steps: dict[str, float]
    peak_mib: float
    artifact_mib: float


class _Peak(threading.Thread):
    """The most memory behind which is no file that a process and all below it held at one time; shared pages once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.mib = 0.0
        self._pid, self._ended = pid, threading.Event()

    def run(self) -> None:
        """Look until `end`."""
        while not self._ended.wait(0.02):
            self.mib = max(self.mib, _held_mib(self._pid))

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()


def _held_mib(pid: int) -> float:
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(memory_bytes(process.pid) for process in tree) / 2**20


def _compiled(
    side: str, checkout: Path, model: _Model, way: str, cache: Path, pyc: Path, round: int, *, memory: bool = False
) -> Took:
    """Compiles by a command, as a user does."""
    out, case, path = cache / "model.so", model.case, model.path_of(way)
    command = [sys.executable, "-P", "-m", program(checkout), "compile", str(path)]
    command += ["-o", str(out), "--force", "--json"]
    command += ["--precision", case.precision] if case.precision else []
    environment = {**os.environ, "RELAXC_CACHE_DIR": str(cache), "PYTHONPATH": str(checkout)}
    environment["PYTHONPYCACHEPREFIX"] = str(pyc)  # as what is installed has its bytecode
    environment["PYTHONDONTWRITEBYTECODE"] = ""
    start = time.perf_counter()
    with (cache / "out.json").open("w+b") as told:
        process = subprocess.Popen(command, cwd=cache, env=environment, stdout=told)
        peak = _Peak(process.pid)
        if memory:
            peak.start()
        _, status, used = os.wait4(process.pid, 0)
        if memory:
            peak.end()
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}")
        told.seek(0)
        build: dict[str, Any] = json.load(told)["build"]
    cpu_s = used.ru_utime + used.ru_stime
    steps, size = build.get("timings", {}), out.stat().st_size / 2**20
    return Took(round, case.label, way, side, wall_s, cpu_s, build["stages"], steps, peak.mib, size)


def _round(
    round: int, model: _Model, sides: dict[str, Path], ways: Sequence[str], folder: Path, *, memory: bool
) -> Iterator[Took]:
    for side, checkout in sides.items():
        ours = checkout == _OURS
        stores = [ways if ours else ways[:1], [_BATCH_COLD] if "batch" in ways else []]
        for each in filter(None, stores):
            cache = Path(tempfile.mkdtemp(dir=folder))
            try:
                for way in each:
                    yield _compiled(side, checkout, model, way, cache, folder / "pyc", round, memory=memory)
            finally:
                shutil.rmtree(cache)


def _exported(case: Case, folder: Path, ways: Sequence[str]) -> _Model:
    """The model, with two sets of weights and two batch sizes if `ways` have them, written where they are not yet."""
    folder.mkdir(parents=True, exist_ok=True)
    name = replace(case, precision=None).key
    found = _Model(case, *(folder / f"{name}{suffix}.onnx" for suffix in ("", ".other", ".batch")))
    for way in ways:
        path, batch = found.path_of(way), 2 * (case.batch or 1) if way == "batch" else case.batch
        if not path.exists():
            built = zoo.build(case.model, size=case.size, seed=int(way == "weights"))
            model = zoo.sized(built, batch=batch, tokens=case.tokens)
            made = path.with_suffix(".part.onnx")
            zoo.write_onnx(model, made)
            if case.quantized:
                plain = made.rename(path.with_suffix(".plain.onnx"))
                quantize(plain, made, {key: value.numpy() for key, value in files.named_tensors(model).items()})
                plain.unlink()
            made.rename(path)
    return found


def _print_memory(took: Sequence[Took]) -> None:
    base = next((each.side for each in took if each.side != "ours"), "ours")
    print(f"{'model':<16}{'':<8}{'peak MiB':>10}{'artifact MiB':>14}  of {base}: peak, artifact")
    peaks, sizes = (
        {
            (model, side): statistics.median(getattr(e, field) for e in took if (e.model, e.side) == (model, side))
            for model, side in dict.fromkeys((each.model, each.side) for each in took)
        }
        for field in ("peak_mib", "artifact_mib")
    )
    for model, side in peaks:
        peak, size = peaks[model, side], sizes[model, side]
        ratios = f"{peak / peaks[model, base]:.2f}, {size / sizes[model, base]:.2f}"
        print(f"{model:<16}{side:<8}{peak:>10.0f}{size:>14.1f}  {ratios}")


def _print(took: Sequence[Took], plain: Mapping[str, str]) -> None:
    """Prints times; `plain` has the label in float32 of each case."""

    def medians(model: str, way: str, side: str) -> tuple[float, float]:
        fitting = [each for each in took if (each.model, each.way, each.side) == (model, way, side)]
        return statistics.median(each.wall_s for each in fitting), statistics.median(each.cpu_s for each in fitting)

    def beside_float32(model: str, way: str, side: str) -> str:
        timed = {(each.model, each.way, each.side) for each in took}
        if model == plain[model] or (plain[model], way, side) not in timed:
            return ""
        (wall, cpu), (wall_plain, cpu_plain) = medians(model, way, side), medians(plain[model], way, side)
        return f", of float32 {wall / wall_plain:.2f} ({cpu / cpu_plain:.2f})"

    base = next((each.side for each in took if each.side != "ours"), "ours")
    print(f"{'model':<20}{'':<18}{'wall s':>8}{'cpu s':>8}  of {base} (cpu)")
    ratios: dict[str, list[float]] = {}
    for model, way, side in dict.fromkeys((each.model, each.way, each.side) for each in took):
        wall, cpu = medians(model, way, side)
        wall_base, cpu_base = medians(model, _BATCH_COLD if way.startswith("batch") else "cold", base)
        print(f"{model:<20}{f'{side} {way}':<18}{wall:>8.2f}{cpu:>8.2f}  ", end="")
        print(f"{wall / wall_base:.2f} ({cpu / cpu_base:.2f}){beside_float32(model, way, side)}")
        ratios.setdefault(f"{side} {way}", []).append(wall / wall_base)
    for name, each in ratios.items():
        print(f"{name}: geometric mean {statistics.geometric_mean(each):.2f}, largest {max(each):.2f}")


def main() -> None:
    """Print the table, and write each compile with its stages and steps to `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--beside", type=Path, help="another checkout of relaxc, which the ratios are to")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="what to time, `cold` always")
    parser.add_argument("--folder", type=Path, help="where the models are, or are written to stay")
    parser.add_argument("--memory", action="store_true", help="measure memory and artifacts instead, of cold compiles")
    parser.add_argument("--json", type=Path, help="file for all numbers, and to go on from")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="S", help="seconds to begin rounds in")
    arguments = parser.parse_args()
    start = time.monotonic()
    sides = {"ours": _OURS} | ({"beside": arguments.beside.absolute()} if arguments.beside else {})
    ways = ["cold"] if arguments.memory else list(dict.fromkeys(["cold", *arguments.ways]))
    cases = [parse(text, size=arguments.size) for text in arguments.models]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = [_exported(case, arguments.folder or folder, ways) for case in cases]
        took = _read(arguments.json)
        todo = [(number, model) for number in range(arguments.rounds) for model in models]
        todo = [each for each in todo if not any((e.round, e.model) == (each[0], each[1].case.label) for e in took)]
        for side, checkout in sides.items() if todo else ():
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                _compiled(side, checkout, models[0], "cold", Path(cache), folder / "pyc", -1)
        for number, model in todo:
            if time.monotonic() - start > arguments.limit:
                raise SystemExit(os.EX_TEMPFAIL)
            for each in list(_round(number, model, sides, ways, folder, memory=arguments.memory)):
                print(
                    f"{each.model} {each.side} {each.way}: {each.wall_s:.2f} s, cpu {each.cpu_s:.2f} s", file=sys.stderr
                )
                took.append(each)
            _write(arguments.json, took)
    if arguments.memory:
        _print_memory(took)
    elif took:
        _print(took, {model.case.label: model.plain for model in models})


def _read(path: Path | None) -> list[Took]:
    return [Took(**row) for row in json.loads(path.read_text())] if path is not None and path.exists() else []


def _write(path: Path | None, took: Sequence[Took]) -> None:
    if path is not None:
        made = path.with_name(f"{path.name}.part")
        made.write_text(
            json.dumps([{field: getattr(each, field) for field in Took.__slots__} for each in took], indent=1)
        )
        made.replace(path)


if __name__ == "__main__":
    main()
