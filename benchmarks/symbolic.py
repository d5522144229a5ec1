"""Sizes named at the call beside sizes fixed at compile time: one model drawn by a seed, two artifacts, by turns.

    python -m benchmarks.symbolic [--seeds 1 2] [--kinds mlp encoder bytes codes] [--rounds 7] [--turn 0.3] [--json]

Each artifact runs in a process of its own, stopped when it is not its turn. Shown are medians over rounds in
milliseconds, and the symbolic artifact's over the static one's; last their geometric mean. `bytes` is an encoder with
dynamically quantized products, `codes` a decoder whose weights are codes of 4 bits in blocks of 32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

from relaxc.service.runtime.sides import Side

__all__ = ["KINDS", "main", "write"]

Draw = np.random.Generator


def ours(path: str, values: dict[str, Any]) -> Callable[[], Any]:
    """For a side: calls of the artifact."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # seconds for nothing
    from relaxc.service.runtime import load

    session = load(path)
    return lambda: session(values)


class Graph:
    """Nodes and weights of a model under construction; a method returns the name of its result."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def constant(self, value: Any) -> str:
        """Add a constant."""
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.weights)}"))
        return str(self.weights[-1].name)

    def weight(self, *shape: int) -> str:
        """Add random weights that keep the scale of what they multiply."""
        return self.constant((self.draw.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def node(self, kind: str, *operands: str, results: int = 1, **attributes: Any) -> str:
        """Add a node, and return the name of its first result."""
        names = [f"v{len(self.nodes)}_{number}" for number in range(results)]
        self.nodes.append(helper.make_node(kind, operands, names, **attributes))
        return names[0]

    def norm(self, x: str, width: int) -> str:
        """Normalize rows."""
        return self.node("LayerNormalization", x, self.constant(np.ones(width, np.float32)), axis=-1)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Multiply by weights, and add a bias."""
        return self.node("Add", self.node("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def attention(self, x: str, width: int, heads: int, linear: Any, mask: str = "") -> str:
        """Attend to all rows, or as the mask says, and project what comes of it."""

        def head(order: list[int]) -> str:
            split = self.node("Reshape", linear(x, width, width), self.constant([0, 0, heads, width // heads]))
            return self.node("Transpose", split, perm=order)

        query, key, value = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
        scores = self.node("Mul", self.node("MatMul", query, key), self.constant(np.float32((width // heads) ** -0.5)))
        scores = self.node("Add", scores, mask) if mask else scores
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        merged = self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), self.constant([0, 0, width]))
        return str(linear(merged, width, width))

    def bytes(self, x: str, inputs: int, outputs: int) -> str:
        """Be `linear` with A quantized at the call, and weights of int8."""
        number = len(self.nodes)
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], [f"q{number}", f"s{number}", f"z{number}"]))
        weight = self.constant(self.draw.integers(-127, 128, (inputs, outputs), np.int8))
        total = self.node("MatMulInteger", f"q{number}", weight, f"z{number}")
        scale = self.node("Mul", f"s{number}", self.constant(np.float32(inputs**-0.5 / 74)))
        scaled = self.node("Mul", self.node("Cast", total, to=TensorProto.FLOAT), scale)
        return self.node("Add", scaled, self.weight(outputs))

    def codes(self, x: str, inputs: int, outputs: int, block: int = 32) -> str:
        """Be `linear` with codes of 4 bits for weights, and no bias."""
        codes = self.constant(self.draw.integers(0, 256, (outputs, inputs // block, block // 2), np.uint8))
        scales = self.constant(np.full((outputs * inputs // block,), inputs**-0.5 / 4.6, np.float32))
        attributes = {"K": inputs, "N": outputs, "bits": 4, "block_size": block}
        return self.node("MatMulNBits", x, codes, scales, domain="com.microsoft", **attributes)


def _mlp(graph: Graph) -> tuple[str, dict[str, Any], list[int]]:
    width = int(graph.draw.integers(4, 40)) * 16
    x, inputs = "x", width
    for outputs in [*(int(graph.draw.integers(2, 64)) * 16 for _ in range(3)), 10]:
        x, inputs = graph.node("Relu", graph.linear(x, inputs, outputs)), outputs
    return x, {"x": ["batch", width]}, [1, 3, 32, 150]


def _blocks(graph: Graph, linear: Any, mask: str = "") -> tuple[str, int]:
    heads, depth = int(graph.draw.integers(3, 7)), int(graph.draw.choice([32, 64]))
    width, x = heads * depth, "x"
    for _ in range(2):
        x = graph.node("Add", x, graph.attention(graph.norm(x, width), width, heads, linear, mask))
        inner = graph.node("Gelu", linear(graph.norm(x, width), width, 4 * width))
        x = graph.node("Add", x, linear(inner, 4 * width, width))
    return x, width


def _encoder(graph: Graph, linear: Any = None) -> tuple[str, dict[str, Any], list[int]]:
    x, width = _blocks(graph, linear or graph.linear)
    return x, {"x": [int(graph.draw.integers(1, 3)), "length", width]}, [1, 17, 64, 200]


def _decoder(graph: Graph) -> tuple[str, dict[str, Any], list[int]]:
    x, width = _blocks(graph, graph.codes, "mask")
    return x, {"x": [1, "length", width], "mask": ["length", "length"]}, [1, 5, 50, 150]


KINDS: dict[str, Callable[[Graph], tuple[str, dict[str, Any], list[int]]]] = {
    "mlp": _mlp,
    "encoder": _encoder,
    "bytes": lambda graph: _encoder(graph, graph.bytes),
    "codes": _decoder,
}
"""From a graph to the name of its result, its inputs' shapes with one symbol, and the sizes for that."""


def write(kind: str, seed: int, path: Path) -> tuple[dict[str, Any], list[int]]:
    """Write the model of a kind and a seed. Return its inputs' shapes with a symbol, and the sizes to time."""
    graph = Graph(np.random.default_rng(seed))
    result, inputs, sizes = KINDS[kind](graph)
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    shape = ["batch", 10] if kind == "mlp" else inputs["x"]
    made = helper.make_graph(
        graph.nodes, kind, given, [helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)], graph.weights
    )
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(made, opset_imports=domains, ir_version=10), path)
    return inputs, sizes


def _fixed(shape: list[Any], size: int) -> tuple[int, ...]:
    return tuple(each if isinstance(each, int) else size for each in shape)


def _rows(kind: str, seed: int, folder: Path, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    import relaxc

    model, named = folder / f"{kind}{seed}.onnx", folder / f"{kind}{seed}.so"
    inputs, sizes = write(kind, seed, model)
    relaxc.compile(model, output=named)
    for size in sizes:
        shapes = {name: _fixed(shape, size) for name, shape in inputs.items()}
        fixed = folder / f"{kind}{seed}-{size}.so"
        relaxc.compile(model, output=fixed, options=relaxc.CompileOptions(shapes=tuple(shapes.items())))
        draw = np.random.default_rng(seed)
        values = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        symbolic, static = _medians([named, fixed], values, rounds, seconds)
        row = {"kind": kind, "seed": seed, "size": size, "symbolic_ms": symbolic, "static_ms": static}
        yield {**row, "ratio": symbolic / static}


def _medians(artifacts: list[Path], values: Any, rounds: int, seconds: float) -> list[float]:
    found: list[list[float]] = [[] for _ in artifacts]
    with ExitStack() as stack:
        sides = []
        for artifact in artifacts:
            side = Side(artifact.stem, "benchmarks.symbolic:ours", str(artifact), values)
            stack.callback(side.close)
            side.turn(seconds / 2)
            side.stop()
            sides.append(side)
        for number in range(rounds):
            for at in (0, 1) if number % 2 else (1, 0):
                sides[at].go_on()
                found[at].append(statistics.median(sides[at].turn(seconds)[0]))
                sides[at].stop()
    return [statistics.median(each) for each in found]


def main() -> None:
    """Print a row for each kind, seed and size, and the geometric mean of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn", type=float, default=0.3, metavar="S")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        for kind in arguments.kinds:
            for seed in arguments.seeds:
                for row in _rows(kind, seed, Path(name), arguments.rounds, arguments.turn):
                    ratios.append(row["ratio"])
                    shown = {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
                    print(
                        json.dumps(shown) if arguments.json else "  ".join(f"{v:>9}" for v in shown.values()),
                        flush=True,
                    )
    mean = round(statistics.geometric_mean(ratios), 4)
    print(json.dumps({"mean": mean}) if arguments.json else f"mean {mean}")


if __name__ == "__main__":
    main()
