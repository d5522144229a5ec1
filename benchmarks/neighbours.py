"""Calls beside busy processes, in half a core, and from several threads: our pool beside ONNX Runtime's, by turns.

    python -m benchmarks.neighbours [--rounds 5] [--turn 0.35] [--models mlp resnet18] [--json]

Each side is a process, stopped when it is not its turn. `beside N` has N processes that only count, `half a core` a
control group with that quota (where one can be made). Of each runtime the better number of threads counts, 1 or all
cores, by p50 and by p99 apart; shown are medians over rounds, and ours over ONNX Runtime's. `N calls` is one session
called by N threads: calls a second over those of N sessions of ours, and over one session of ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from relaxc.service.runtime.sides import Side

__all__ = ["main"]

BUSY = (0, 1, 2, 4)
CALLERS = (2, 4)
_LAYERS = (512, 1024, 1024, 256)
_GROUPS = (
    (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "50000"),
    (Path("/sys/fs/cgroup"), "cpu.max", "50000 100000"),
)
_HERE = "benchmarks.neighbours"

Values = dict[str, Any]
Turn = tuple[list[float], float]


def ours(path: str, threads: int, values: Values, sessions: int, group: str | None) -> Callable[[], Any]:
    """For a side: calls of the artifact, each by a session that no other call has where there are several."""
    _enter(group)
    sys.modules["torch"] = None  # type: ignore[assignment]  # seconds for nothing
    from relaxc.service.runtime import load

    made = [load(path, threads=threads) for _ in range(sessions)]
    if sessions == 1:
        return lambda: made[0](values)
    free = deque(made)

    def call() -> None:
        session = free.pop()
        session(values)
        free.append(session)

    return call


def peer(path: str, threads: int, values: Values, group: str | None) -> Callable[[], Any]:
    """For a side: calls of ONNX Runtime."""
    _enter(group)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, values)


def _enter(group: str | None) -> None:
    if group:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def _mlp(path: Path) -> None:
    from onnx import helper, numpy_helper, save

    draw, nodes, weights, value = np.random.default_rng(0), [], [], "x"
    for place, (a, b) in enumerate(pairwise(_LAYERS)):
        weight = (draw.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{place}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{place}"], [f"h{place}"]))
        nodes.append(helper.make_node("Relu", [f"h{place}"], [value := f"r{place}"]))
    inputs, outputs = (
        [helper.make_tensor_value_info(name, 1, [1, width])]
        for name, width in (("x", _LAYERS[0]), (value, _LAYERS[-1]))
    )
    graph = helper.make_graph(nodes, "mlp", inputs, outputs, weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def _built(name: str, folder: Path) -> tuple[str, str, Values]:
    """The model, its artifact, and inputs."""
    import relaxc
    from relaxc.service.runtime.inputs import random_inputs
    from tests.zoo import export_onnx

    model, artifact = folder / f"{name}.onnx", folder / f"{name}.so"
    if name == "mlp":
        _mlp(model)
    else:
        export_onnx(name, model, size="small" if name == "bert" else "full", dynamic=name == "bert")
    relaxc.compile(model, output=artifact)
    signature = relaxc.load(artifact).signature
    sizes = {dim: 32 if "seq" in dim else 1 for dim in signature.bounds} if name == "bert" else {}
    return str(model), str(artifact), random_inputs(signature, seed=0, sizes=sizes)


@contextmanager
def _busy(count: int) -> Iterator[None]:
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


@contextmanager
def _half_a_core() -> Iterator[str | None]:
    """A control group of this quota; None where none can be made."""
    for top, name, text in _GROUPS:
        group = top / f"relaxc-neighbours-{os.getpid()}"
        if not (top / "cgroup.procs").is_file():
            continue
        try:
            group.mkdir()
            (group / name).write_text(text)
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        try:
            yield str(group)
        finally:
            group.rmdir()
        return
    yield None


def _turns(makes: Mapping[str, Callable[[], Side]], rounds: int, seconds: float) -> dict[str, list[Turn]]:
    """Each side's turns."""
    found: dict[str, list[Turn]] = {name: [] for name in makes}
    with ExitStack() as stack:
        sides = {}
        for name, make in makes.items():
            sides[name] = side = make()
            stack.callback(side.close)
            side.turn(seconds / 4)
            side.stop()
        for number in range(rounds):
            order = list(sides)[:: 1 if number % 2 else -1]
            for name in order:
                sides[name].go_on()
                found[name].append(sides[name].turn(seconds))
                sides[name].stop()
    return found


def _sides(built: tuple[str, str, Values], streams: int, group: str | None) -> dict[str, Callable[[], Side]]:
    """One session of each runtime by each number of threads, and of ours as many sessions as streams too."""
    model, artifact, values = built
    made: dict[str, Callable[[], Side]] = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        made[f"peer {threads}"] = lambda t=threads: Side(
            "peer", f"{_HERE}:peer", model, t, values, group, streams=streams
        )
        for sessions in sorted({1, streams}):
            name = f"{'ours' if sessions == 1 else 'several'} {threads}"
            arguments = (artifact, threads, values, sessions + (sessions > 1), group)
            made[name] = lambda a=arguments: Side("ours", f"{_HERE}:ours", *a, streams=streams)
    return made


def _best(found: Mapping[str, list[Turn]], kind: str, of: Callable[[Turn], float], best: Any = min) -> float:
    """The better number of threads, by medians over rounds."""
    return float(best(statistics.median(map(of, turns)) for name, turns in found.items() if name.startswith(kind)))


def _latency(found: Mapping[str, list[Turn]]) -> dict[str, float]:
    row = {}
    for percent in (50, 99):
        mine, other = (
            _best(found, kind, lambda turn, p=percent: np.percentile(turn[0], p)) for kind in ("ours", "peer")
        )
        row |= {f"p{percent}_ms": mine, f"p{percent}_peer_ms": other, f"p{percent}_ratio": mine / other}
    return row


def _rate(found: Mapping[str, list[Turn]]) -> dict[str, float]:
    mine, several, other = (
        _best(found, kind, lambda turn: len(turn[0]) / turn[1], max) for kind in ("ours", "several", "peer")
    )
    return {"calls_s": mine, "over_sessions": mine / several, "over_peer": mine / other}


def _rows(built: tuple[str, str, Values], rounds: int, seconds: float) -> Iterator[tuple[str, dict[str, float]]]:
    for count in BUSY:
        with _busy(count):
            yield f"beside {count}", _latency(_turns(_sides(built, 1, None), rounds, seconds))
    with _half_a_core() as group:
        if group:
            yield "half a core", _latency(_turns(_sides(built, 1, group), rounds, seconds))
    for streams in CALLERS:
        yield f"{streams} calls", _rate(_turns(_sides(built, streams, None), rounds, seconds))


def main() -> None:
    """Print a row for each model and neighbourhood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mlp", "resnet18"], help="mlp, or families of tests.zoo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=0.35, metavar="S")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for model in arguments.models:
            built = _built(model, Path(name))
            for neighbours, row in _rows(built, arguments.rounds, arguments.turn):
                shown = {key: round(value, 4) for key, value in row.items()}
                if arguments.json:
                    print(json.dumps({"model": model, "neighbours": neighbours, **shown}), flush=True)
                else:
                    print(
                        f"{model:10} {neighbours:12}", *(f"{key} {value}" for key, value in shown.items()), flush=True
                    )


if __name__ == "__main__":
    main()
