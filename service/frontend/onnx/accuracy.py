"""How far a quantized model is from the one in floats: each output, and what each layer alone adds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LAYERS", "Error", "layers_of", "measured", "output_errors", "probe"]

Array = np.ndarray[Any, Any]

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that are a layer of their own in a report."""

_PROBE = "_relaxc_probe"


@dataclass
class Error:
    """Sums over samples: of squares of the values and of the differences, and of what a cosine needs."""

    signal: float = 0.0
    noise: float = 0.0
    others: float = 0.0
    dot: float = 0.0

    def add(self, got: Array, want: Array) -> None:
        """Add a sample."""
        a, b = got.astype(np.float64).reshape(-1), want.astype(np.float64).reshape(-1)
        finite = np.isfinite(a) & np.isfinite(b)
        a, b = a[finite], b[finite]
        self.signal += float(b @ b)
        self.others += float(a @ a)
        self.noise += float((a - b) @ (a - b))
        self.dot += float(a @ b)

    @property
    def relative(self) -> float:
        """The root mean square of the differences over that of the values."""
        return math.sqrt(self.noise / self.signal) if self.signal else 0.0

    @property
    def sqnr_db(self) -> float | None:
        """The ratio of signal and noise; None where there is no noise, or no signal."""
        return round(10 * math.log10(self.signal / self.noise), 2) if self.signal and self.noise else None

    @property
    def cosine(self) -> float | None:
        """The cosine of both; None of zeros."""
        norms = math.sqrt(self.signal) * math.sqrt(self.others)
        return round(min(1.0, self.dot / norms), 6) if norms else None


def measured(
    run: Any, pairs: Mapping[str, tuple[str, str]], samples: Iterable[Mapping[str, Array]]
) -> dict[str, Error]:
    """Return the errors by name, of pairs of outputs of one run: what is compared, and what with."""
    errors = {name: Error() for name in pairs}
    for sample in samples:
        values = run(sample)
        for name, (got, want) in pairs.items():
            errors[name].add(values[got], values[want])
    return errors


def output_errors(run: Any, reference: Any, samples: Iterable[Mapping[str, Array]]) -> dict[str, Error]:
    """Return the error of each output of floats, over all samples."""
    errors: dict[str, Error] = {}
    for sample in samples:
        want, got = reference(sample), run(sample)
        for name, value in want.items():
            if value.dtype.kind == "f":
                errors.setdefault(name, Error()).add(got[name], value)
    return errors


def layers_of(quantized: Any) -> dict[str, Any]:
    """Return the nodes of layers that read a dequantized value, by name."""
    made = {name: node for node in quantized.graph.node for name in node.output}
    return {
        node.name: node
        for node in quantized.graph.node
        if node.op_type in LAYERS and any(_is(made.get(name), "DequantizeLinear") for name in node.input)
    }


def probe(plain: Any, quantized: Any) -> tuple[Any, dict[str, tuple[str, str]]]:
    """Return the plain model with each quantized layer beside its own, which reads the same values, and the names of
    both outputs: the difference is what that layer alone adds. `plain` is changed in place.
    """
    made = {name: node for node in quantized.graph.node for name in node.output}
    held = {tensor.name: tensor for tensor in quantized.graph.initializer}
    known = {tensor.name for tensor in plain.graph.initializer}
    own = {node.name: node for node in plain.graph.node}
    pairs: dict[str, tuple[str, str]] = {}
    from onnx import ValueInfoProto

    for name, node in layers_of(quantized).items():
        if name not in own:
            continue
        copy = type(node).FromString(node.SerializeToString())
        nodes = [copy]
        for place, source in enumerate(node.input):
            back = made.get(source)
            if back is None or back.op_type != "DequantizeLinear":
                copy.input[place] = own[name].input[place]
                continue
            steps = _steps(back, made.get(back.input[0]), own[name].input[place], f"{name}{_PROBE}{place}")
            copy.input[place] = steps[-1].output[0]
            nodes = [*steps, *nodes]
        copy.name, copy.output[0] = f"{name}{_PROBE}", f"{own[name].output[0]}{_PROBE}"
        pairs[name] = copy.output[0], own[name].output[0]
        plain.graph.node.extend(nodes)
        wanted = [each for step in nodes for each in step.input if each in held and each not in known]
        plain.graph.initializer.extend(held[each] for each in dict.fromkeys(wanted))
        known.update(wanted)
    given = {value.name for value in plain.graph.output}
    names = [each for pair in pairs.values() for each in pair if each not in given]
    plain.graph.output.extend(ValueInfoProto(name=each) for each in dict.fromkeys(names))
    return plain, pairs


def _is(node: Any, kind: str) -> bool:
    return node is not None and node.op_type == kind


def _steps(back: Any, forth: Any, source: str, name: str) -> list[Any]:
    """Copies of the quantization of an activation and of the dequantization, or of a weight's dequantization alone."""
    copy = type(back).FromString(back.SerializeToString())
    copy.name, copy.output[0] = name, name
    if not _is(forth, "QuantizeLinear"):
        return [copy]
    first = type(forth).FromString(forth.SerializeToString())
    first.name, first.input[0], first.output[0] = f"{name}_codes", source, f"{name}_codes"
    copy.input[0] = first.output[0]
    return [first, copy]
