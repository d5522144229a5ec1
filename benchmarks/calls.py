"""What a call costs: tiny networks beside ONNX Runtime from Python, by turns.

    python -m benchmarks.calls --threads 1 2 --json

`call` is `session(inputs)`, `bound` is `session.bind(inputs)()`; both, and ONNX Runtime's `run(None, inputs)`, take and
give numpy arrays. A turn is some hundred calls. Shown are medians over turns in microseconds, and the medians of each
round's ratios; with `--least` the least, on a machine that does other things too. `kernels` are the PrimFuncs alone,
each called in a loop with what it takes; `overhead` is the rest of a call.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper, save

import relaxc

__all__ = ["CASES", "main", "measure"]

CASES = {"mlp": (1, 4), "logistic": (1,), "lstm": (1,)}
"""The batches of each network."""

_WIDTH = 64


def _drawn(*shape: int) -> Any:
    draw = np.random.default_rng(sum(shape))
    return (draw.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def _model(nodes: list[Any], inputs: Mapping[str, int], outputs: Mapping[str, int], weights: Mapping[str, Any]) -> Any:
    """A model whose inputs and outputs have a symbolic batch and these widths."""
    first, last = (
        [helper.make_tensor_value_info(name, 1, ["batch", width]) for name, width in each.items()]
        for each in (inputs, outputs)
    )
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", first, last, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _mlp() -> Any:
    node = helper.make_node
    nodes = [node("Gemm", ["x", "w1", "b1"], ["h"]), node("Relu", ["h"], ["r"]), node("Gemm", ["r", "w2", "b2"], ["y"])]
    weights = {"w1": _drawn(64, 64), "b1": _drawn(64), "w2": _drawn(64, 10), "b2": _drawn(10)}
    return _model(nodes, {"x": 64}, {"y": 10}, weights)


def _logistic() -> Any:
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["z"]), helper.make_node("Sigmoid", ["z"], ["p"])]
    return _model(nodes, {"x": 8}, {"p": 1}, {"w": _drawn(8, 1), "b": _drawn(1)})


def _lstm() -> Any:
    """A cell as torch exports it: two products, and the gates."""
    rows = [
        ("Gemm", "x wx bx", "gx"), ("Gemm", "h wh bh", "gh"), ("Add", "gx gh", "g"), ("Split", "g", "i f n o"),
        ("Sigmoid", "i", "si"), ("Sigmoid", "f", "sf"), ("Tanh", "n", "tn"), ("Sigmoid", "o", "so"),
        ("Mul", "sf c", "kept"), ("Mul", "si tn", "new"), ("Add", "kept new", "c1"), ("Tanh", "c1", "tc"),
        ("Mul", "so tc", "h1"),
    ]  # fmt: skip
    nodes = [
        helper.make_node(op, given.split(), made.split(), **({"axis": 1, "num_outputs": 4} if op == "Split" else {}))
        for op, given, made in rows
    ]
    gates = 4 * _WIDTH
    weights = {"wx": _drawn(_WIDTH, gates), "wh": _drawn(_WIDTH, gates), "bx": _drawn(gates), "bh": _drawn(gates)}
    return _model(nodes, dict.fromkeys("xhc", _WIDTH), dict.fromkeys(("h1", "c1"), _WIDTH), weights)


_MODELS: Mapping[str, Callable[[], Any]] = {"mlp": _mlp, "logistic": _logistic, "lstm": _lstm}


def measure(
    model: Path, artifact: Path, batch: int, *, threads: int, rounds: int, calls: int, least: bool
) -> dict[str, Any]:
    """Return the microseconds of each way to call, and the ratios to ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    peer = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    session = relaxc.load(artifact, threads=threads)
    draw = np.random.default_rng(0)
    inputs = {
        spec.name: draw.standard_normal((batch, spec.shape[1]), dtype=np.float32) for spec in session.signature.inputs
    }
    bound = session.bind(inputs)
    ways: dict[str, Callable[[], Any]] = {
        "call": lambda: session(inputs),
        "bound": bound,
        "onnxruntime": lambda: peer.run(None, inputs),
    }
    for _ in range(3):
        for ours, bounds, want in zip(session(inputs).values(), bound().values(), peer.run(None, inputs), strict=True):
            np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(ours, bounds)
    found = session._programs.first.replays.find((), inputs)
    assert found is not None, "it is not replayed"
    for place, (function, arguments) in enumerate(found[0].steps):
        ways[f"kernel{place}"] = lambda function=function, arguments=arguments: function(*arguments)
    times = _by_turns(ways, rounds, calls)
    taken = min if least else statistics.median
    row = {name: taken(of) for name, of in times.items() if not name.startswith("kernel")}
    row["kernels"] = sum(taken(of) for name, of in times.items() if name.startswith("kernel"))
    row["overhead"] = row["call"] - row["kernels"]
    for name in ("call", "bound"):
        each = [a / b for a, b in zip(times[name], times["onnxruntime"], strict=True)]
        row[f"{name}_ratio"] = row[name] / row["onnxruntime"] if least else statistics.median(each)
    return row


def _by_turns(ways: Mapping[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for name in list(ways)[:: 1 if number % 2 else -1]:
                run = ways[name]
                run()
                start = time.perf_counter_ns()
                for _ in range(calls):
                    run()
                times[name].append((time.perf_counter_ns() - start) / calls / 1e3)
    finally:
        gc.enable()
    return times


def main() -> None:
    """Compile the networks, and print a row for each, batch and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--least", action="store_true", help="the least of all turns, in place of the median")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, batches in CASES.items():
            model, artifact = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}.so"
            save(_MODELS[name](), model)
            relaxc.compile(model, output=artifact)
            for threads in args.threads:
                for batch in batches:
                    row = measure(
                        model, artifact, batch, threads=threads, rounds=args.rounds, calls=args.calls, least=args.least
                    )
                    _print({"model": name, "batch": batch, "threads": threads, **row}, as_json=args.json)


def _print(row: Mapping[str, Any], *, as_json: bool) -> None:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
    print(
        json.dumps(rounded) if as_json else "  ".join(f"{name} {value}" for name, value in rounded.items()), flush=True
    )


if __name__ == "__main__":
    main()
