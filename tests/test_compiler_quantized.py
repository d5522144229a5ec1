"""A quantized network passes its verification, and with a fault in one place it does not: code beside code."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import relaxc
from relaxc.service import compiler, frontend
from relaxc.service.compiling import verifier
from relaxc.service.errors import VerificationFailed
from relaxc.service.request import CompileOptions
from relaxc.service.runtime import load
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
    if fault == "none":
        assert judged(right, wrong).passed
        return
    with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
        judged(right, wrong)


DEPTH, WIDTH = 8, 96


def residuals(*, zero: int = ZERO, swapped: bool = False, wraps: bool = False, moved: float = 0.0) -> Any:
    """Eight products with a residual around each and a Relu before each quantization; a fault is in the fifth."""
    rng = np.random.default_rng(1)
    held: dict[str, Any] = {"s": np.float32(SCALE), "z": np.uint8(ZERO), "other": np.uint8(zero)}
    held |= {"zf": np.float32(ZERO), "t": np.float32(SCALE * (1 + moved))}
    nodes, name = [], "x"
    for layer in range(DEPTH):
        here = layer == DEPTH // 2
        scales = rng.uniform(0.0005, 0.003, WIDTH).astype("float32")
        if swapped and here:
            scales[[0, 1]] = scales[[1, 0]]
        held |= {f"w{layer}": rng.integers(-127, 128, (WIDTH, WIDTH)).astype("int8"), f"s{layer}": scales}
        held[f"n{layer}"] = np.zeros(WIDTH, "int8")
        nodes += _wrapped(name) if wraps and here else [node("QuantizeLinear", [name, "t", "z"], [f"{name}q"])]
        nodes.append(node("DequantizeLinear", [f"{name}q", "s", "other" if here else "z"], [f"{name}d"]))
        nodes.append(node("DequantizeLinear", [f"w{layer}", f"s{layer}", f"n{layer}"], [f"v{layer}"], axis=1))
        nodes.append(node("MatMul", [f"{name}d", f"v{layer}"], [f"p{layer}"]))
        nodes.append(node("Add", [f"p{layer}", f"{name}d"], [f"a{layer}"]))
        nodes.append(node("LayerNormalization", [f"a{layer}", "one"], [name := f"y{layer}"]))
    held["one"] = np.full(WIDTH, 1.5, "float32")
    return model(nodes, [value("x", [32, WIDTH])], [value(name, [32, WIDTH])], **held)


CHANNEL = 5

OF_A_CHANNEL = {
    "zero": ("Mul", np.where(np.arange(WIDTH) == CHANNEL, 0, 1)),
    "twice": ("Mul", np.where(np.arange(WIDTH) == CHANNEL, 2, 1)),
    "a tenth more": ("Mul", np.where(np.arange(WIDTH) == CHANNEL, 1.1, 1)),
    "two steps off": ("Add", np.where(np.arange(WIDTH) == CHANNEL, 2 * SCALE, 0)),
    "another's": ("Gather", np.array([1, 0, *range(2, WIDTH)])),
}


def with_a_channel(net: Any, at: str, fault: str) -> Any:
    """The network with a fault in one channel of a tensor."""
    kind, array = OF_A_CHANNEL[fault]
    from onnx import numpy_helper

    array = array.astype("int64" if kind == "Gather" else "float32")
    net.graph.initializer.append(numpy_helper.from_array(array, "fault"))
    nodes = list(net.graph.node)
    index = next(index for index, each in enumerate(nodes) if at in each.output)
    nodes[index].output[0] = "right"
    nodes.insert(index + 1, node(kind, ["right", "fault"], [at], **({"axis": -1} if kind == "Gather" else {})))
    del net.graph.node[:]
    net.graph.node.extend(nodes)
    return net


@pytest.mark.sampled
@pytest.mark.parametrize("at", [f"y{DEPTH - 1}", f"p{DEPTH - 1}"], ids=["the output", "the last product"])
@pytest.mark.parametrize("fault", OF_A_CHANNEL)
def test_one_channel_that_is_wrong_is_caught(fault: str, at: str, tmp_path: Path) -> None:
    """As a root mean square over an output it may be within what all roundings cause."""
    right = write(tmp_path, residuals(), "right.onnx")
    wrong = write(tmp_path, with_a_channel(residuals(), at, fault), "wrong.onnx")
    with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
        judged(right, wrong)


def test_a_fault_among_large_codes_is_caught(tmp_path: Path) -> None:
    """An image of 0 to 255: a normal distribution has four codes of it."""

    def net(limit: float) -> Any:
        held = {"s": np.float32(1), "z": np.uint8(0), "most": np.float32(limit), "n": np.zeros(4, "int8")}
        held |= {"w": np.arange(-50, 58, dtype="int8").reshape(4, 3, 3, 3), "ws": np.full(4, 0.01, "float32")}
        nodes = [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("Min", ["d", "most"], ["c"]),
            node("DequantizeLinear", ["w", "ws", "n"], ["v"], axis=0),
            node("Conv", ["c", "v"], ["y"]),
        ]
        return model(nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 4, 6, 6])], **held)

    right = write(tmp_path, net(255), "right.onnx")
    assert judged(right, write(tmp_path, net(300), "same.onnx")).passed
    with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
        judged(right, write(tmp_path, net(200), "wrong.onnx"))


def judged(right: Path, wrong: Path) -> Any:
    made = relaxc.compile(wrong, options=CompileOptions(verify=False))
    request = compiler.prepare(right)
    signature = frontend.inspect(right, request.model.format).signature
    return verifier.verify(request, signature, lambda: load(made.path), lambda *_: None)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "none"])
def test_faults_deep_in_a_network_are_caught(fault: str, tmp_path: Path) -> None:
    right = write(tmp_path, residuals(), "right.onnx")
    wrong = write(tmp_path, residuals(**FAULTS[fault]), "wrong.onnx")
    with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
        judged(right, wrong)


def test_what_rounding_decides_is_bounded_by_the_reference_s_own_distance(tmp_path: Path) -> None:
    """Scales that are off by 1e-5 stand for another order of sums: some values fall a step to the other side."""
    right = write(tmp_path, residuals(), "right.onnx")
    (row,) = judged(right, write(tmp_path, residuals(moved=1e-5), "other.onnx")).outputs
    assert row.passed and row.moved and 1e-4 < row.rms_error <= row.bound
    apart = row.unquantized
    assert (
        row.bound <= 1.01 * apart["reference"]["error"]
        and apart["artifact"]["error"] < 1.2 * apart["reference"]["error"]
    )
    assert row.top1["rows"] == 32 and 0 < row.top1["decided"] == row.top1["equal"]


@pytest.mark.parametrize("by", [0.0, 1e-4])
def test_integers_of_a_single_kernel_are_exact(by: float, tmp_path: Path) -> None:
    """One code in some thousands, a step off, is a fault: nothing but ONNX's rules decides."""
    rng = np.random.default_rng(0)

    def product(scale: float) -> Any:
        held = {"s": np.float32(0.02), "z": np.uint8(120), "t": np.float32(scale), "y0": np.uint8(99)}
        held |= {"w": rng.integers(-127, 128, (64, 64)).astype("int8"), "n": np.int8(0)}
        last = node("QLinearMatMul", ["x", "s", "z", "w", "s", "n", "t", "y0"], ["y"])
        kind = TensorProto.UINT8
        return model([last], [value("x", [128, 64], kind)], [value("y", [128, 64], kind)], **held)

    right = write(tmp_path, product(0.25), "right.onnx")
    rng = np.random.default_rng(0)
    wrong = write(tmp_path, product(0.25 * (1 + by)), "wrong.onnx")
    if not by:
        assert judged(right, wrong).passed
        return
    with pytest.raises(VerificationFailed, match="uint8 values differ; they must be equal"):
        judged(right, wrong)
