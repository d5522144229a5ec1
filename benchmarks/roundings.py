"""How exact each quantization of a quantized network is: ours, and ONNX Runtime's, beside what float64 says.

python -m benchmarks.roundings resnet50 mobilenet_v2 bert

Every tensor of codes becomes an output. The network is computed in float64, in which each quantization goes on with the
codes that were found, so that no step is carried on: what differs was rounded otherwise there, from the same codes.
`off` counts such codes, and `furthest` is how far the value of one lay from the boundary that it fell to the other side
of, in steps: a float32 near 255 steps has 1.5e-5 of one in its last place. `free` counts the codes that differ where
nothing is put right, and `rms` has how far outputs are from each other over the root mean square of the values: what
those few are carried on to.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cases import Case
from benchmarks.peers.files import export, onnx_path, read_inputs
from relaxc.service.frontend.onnx.double import Node
from relaxc.service.frontend.onnx.file import parse
from relaxc.service.frontend.onnx.reference import unquantized_reference
from relaxc.service.frontend.onnx.widen import DOUBLE, FLOAT32, widened

__all__ = ["BOUNDARY", "Exact", "Off", "codes_of", "exposed", "ours"]

Array = np.ndarray[Any, Any]

BOUNDARY = 1e-4
"""Steps from a boundary within which roundings of float32 decide: seven units in the last place of 255 steps."""


@dataclass(frozen=True)
class Off:
    """Of one quantization: how many of how many `codes` are `off`, by how many `steps` at most, and how far the
    `furthest` of them lay from the boundary.
    """

    codes: int
    off: int
    steps: int
    furthest: float


class Exact:
    """A model computed in float64, but for the codes that quantizations make."""

    def __init__(self, model: Any) -> None:
        import onnx

        model = widened(model, FLOAT32, DOUBLE)
        self.outputs = [value.name for value in model.graph.output]
        self.held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.nodes = [Node(node, model.opset_import) for node in model.graph.node]

    def run(
        self, inputs: Mapping[str, Array], codes: Mapping[str, Array] | None = None
    ) -> tuple[dict[str, Array], dict[str, Off]]:
        """Return outputs and codes by name, and by how much `codes` are off, with which it goes on where given."""
        values = self.held | {name: _wide(value) for name, value in inputs.items()}
        found: dict[str, Array] = {}
        off: dict[str, Off] = {}
        for node in self.nodes:
            operands = [values[name] if name else None for name in node.inputs]
            name = node.outputs[0]
            if node.kind == "QuantizeLinear":
                found[name], steps = _quantized(*operands)
                values[name] = found[name] if codes is None else codes[name]
                off[name] = _off(found[name], steps, values[name])
            elif node.kind == "DequantizeLinear":
                values[name] = _dequantized(*operands, axis=node.attributes.get("axis", 1))
            else:
                values.update(zip(node.outputs, node.run(operands), strict=True))
        return {name: values[name] for name in self.outputs} | found, off


def _wide(value: Array) -> Array:
    return value.astype(np.float64) if value.dtype == np.float32 else value


def _quantized(x: Array, scale: Array, zero: Array) -> tuple[Array, Array]:
    """The codes, and what they were rounded from."""
    steps, limits = x / float(scale), np.iinfo(zero.dtype)
    return np.clip(np.rint(steps) + int(zero), limits.min, limits.max).astype(zero.dtype), steps


def _dequantized(codes: Array, scale: Array, zero: Array, *, axis: int) -> Array:
    shape = [-1 if at == axis else 1 for at in range(codes.ndim)] if scale.size > 1 else []
    return np.asarray((codes.astype(np.int64) - zero.astype(np.int64).reshape(shape)) * scale.reshape(shape))


def _off(exact: Array, steps: Array, codes: Array) -> Off:
    apart = np.abs(codes.astype(int) - exact)
    near = np.abs(steps - np.floor(steps) - 0.5)[apart > 0]
    return Off(apart.size, near.size, int(apart.max(initial=0)), float(near.max(initial=0.0)))


def codes_of(model: Any) -> list[str]:
    """Return the tensors that a model quantizes."""
    return [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]


def exposed(model: Any, names: Sequence[str], out: Path) -> Path:
    """Write the model with these tensors as outputs too, and return where."""
    import onnx

    inferred = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    model.graph.output.extend(inferred[name] for name in names)
    onnx.save(model, out)
    return out


def ours(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return what our artifact of a model makes of inputs; nothing is verified."""
    import relaxc

    made = relaxc.compile(path, options=relaxc.CompileOptions(verify=False))
    found: dict[str, Array] = relaxc.load(made.path)(dict(inputs))
    return found


def _theirs(path: Path, level: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _row(name: str, folder: Path) -> dict[str, Any]:
    case = Case(name, quantized=True)
    export(case, folder)
    path, inputs = onnx_path(case, folder), read_inputs(folder)
    model = parse(path)
    outside = exposed(model, codes_of(model), folder / "exposed.onnx")
    exact = Exact(parse(path))
    free, _ = exact.run(inputs)
    runs = {"ours": ours(outside, inputs)}
    for who, level in (("plain", "ORT_DISABLE_ALL"), ("optimized", "ORT_ENABLE_ALL")):
        runs[who] = _theirs(outside, level, inputs)
    rows = {}
    for who, codes in runs.items():
        found = exact.run(inputs, codes)[1]
        rows[who] = {
            "codes": sum(each.codes for each in found.values()),
            "off": sum(each.off for each in found.values()),
            "steps": max(each.steps for each in found.values()),
            "furthest": max(each.furthest for each in found.values()),
            "free": sum(int(np.count_nonzero(codes[each] != free[each])) for each in found),
        }
    unquantized = unquantized_reference(path, 2)
    everyone = {**runs, "exact": free} | ({} if unquantized is None else {"unquantized": unquantized(inputs)})
    pairs = {
        output: {f"{a} {b}": _rms(everyone[a][output], everyone[b][output]) for a, b in combinations(everyone, 2)}
        for output in exact.outputs
    }
    return {"model": name, "quantizations": rows, "rms": pairs}


def _rms(one: Array, other: Array) -> float:
    apart, size = (np.sqrt(np.mean(np.square(each))) for each in (one.astype(float) - other, other.astype(float)))
    return float(f"{apart / size:.3g}")


def main() -> None:
    """Print a JSON line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    for name in parser.parse_args().models:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(_row(name, Path(place))), flush=True)


if __name__ == "__main__":
    main()
