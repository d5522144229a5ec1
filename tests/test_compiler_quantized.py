"""A quantized network passes its verification, and with a fault in one place it does not: code beside code."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import service
from service import compiler, frontend
from service.errors import VerificationFailed
from service.request import CompileOptions
from service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write

IMAGE, CHANNELS = (1, 8, 12, 12), (8, 24, 24, 16)
SCALE, ZERO = 0.031, 110

FAULTS = {
    "none": {},
    "a zero point": {"zero": ZERO + 1},
    "two scales swapped": {"swapped": True},
    "a saturation missed": {"wraps": True},
}


def network(*, zero: int = ZERO, swapped: bool = False, wraps: bool = False) -> Any:
    """Three convolutions with a quantization between them; a fault is in the second."""
    rng = np.random.default_rng(0)
    held: dict[str, Any] = {
        "s": np.float32(SCALE),
        "z": np.uint8(ZERO),
        "other": np.uint8(zero),
        "zf": np.float32(ZERO),
    }
    nodes, name = [], "x"
    for layer, (inner, outer) in enumerate(pairwise(CHANNELS)):
        scales = rng.uniform(0.0002, 0.002, outer).astype("float32")
        if swapped and layer == 1:
            scales[[0, 1]] = scales[[1, 0]]
        held |= {f"w{layer}": rng.integers(-127, 128, (outer, inner, 3, 3)).astype("int8"), f"s{layer}": scales}
        held[f"n{layer}"] = np.zeros(outer, "int8")
        nodes += _wrapped(name) if wraps and layer == 1 else [node("QuantizeLinear", [name, "s", "z"], [f"{name}q"])]
        nodes.append(node("DequantizeLinear", [f"{name}q", "s", "other" if layer == 1 else "z"], [f"{name}d"]))
        nodes.append(node("DequantizeLinear", [f"w{layer}", f"s{layer}", f"n{layer}"], [f"v{layer}"], axis=0))
        nodes.append(node("Conv", [f"{name}d", f"v{layer}"], [name := f"y{layer}"], pads=[1, 1, 1, 1]))
    return model(nodes, [value("x", IMAGE)], [value(name, [1, CHANNELS[-1], *IMAGE[2:]])], **held)


def _wrapped(name: str) -> list[Any]:
    """Quantization that forgets to saturate."""
    steps = [("Div", [name, "s"], "a"), ("Round", [f"{name}a"], "b"), ("Add", [f"{name}b", "zf"], "c")]
    nodes = [node(kind, inputs, [name + out]) for kind, inputs, out in steps]
    return [*nodes, node("Cast", [f"{name}c"], [f"{name}i"], to=6), node("Cast", [f"{name}i"], [f"{name}q"], to=2)]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(fault: str, tmp_path: Path) -> None:
    right = write(tmp_path, network(), "right.onnx")
    wrong = write(tmp_path, network(**FAULTS[fault]), "wrong.onnx")
    made = service.compile(wrong, options=CompileOptions(verify=False))
    request = compiler.prepare(right)
    signature = frontend.inspect(right, request.model.format).signature

    def judged() -> Any:
        return compiler.verify(request, signature, lambda: load(made.path), lambda *_: None)

    if fault == "none":
        assert judged().passed
        assert made.manifest.schedule[0]["rule"] is not None
        return
    with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
        judged()
