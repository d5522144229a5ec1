"""Quantized operators of ONNX through the whole pipeline, to the bit what ONNX Runtime gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import TensorProto
from tvm import relax

import relaxc
from relaxc.service.frontend import load, reference
from relaxc.service.lowering import pipeline, schedule
from relaxc.service.lowering.target import host_features, resolve, to_tvm
from relaxc.service.passes import finalize, optimize
from relaxc.service.request import CompileOptions, ModelFormat
from tests.frontend.onnx.harness import FLOAT, model, node, value, write

pytestmark = pytest.mark.sampled

pipeline.register()
ONNX_TYPE = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32, "float32": FLOAT}
Array = np.ndarray[Any, Any]


def compiled(path: Path, inputs: dict[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """The outputs of a model after every stage, and the rules that scheduled it."""
    spec = resolve("auto")
    imported = load(path, ModelFormat.ONNX)
    optimized = optimize(imported.module, to_tvm(spec), CompileOptions())
    scheduled = schedule(optimized.module, spec)
    ready, _ = finalize(scheduled.module, to_tvm(spec))
    machine = relax.VirtualMachine(
        relax.build(ready, to_tvm(spec), relax_pipeline=None, tir_pipeline=pipeline.NAME), tvm.cpu()
    )
    arguments = [tvm.runtime.tensor(inputs[each.name]) for each in imported.signature.inputs]
    results = machine["main"](*arguments, tvm.runtime.convert(list(optimized.weights.values())))
    named = {each.name: got.numpy() for each, got in zip(imported.signature.outputs, results, strict=True)}
    return named, [row["rule"] for row in scheduled.report]


def agree(path: Path, inputs: dict[str, Array], *, steps: int = 0, share: float = 0.01) -> list[str]:
    """Integers are equal, or off by at most `steps` in a `share` of them; floats are equal up to rounding."""
    got, rules = compiled(path, inputs)
    for name, want in reference(path, ModelFormat.ONNX)(inputs).items():
        assert got[name].dtype == want.dtype and got[name].shape == want.shape, name
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-5 * np.abs(want).max(), err_msg=name)
            continue
        apart = np.abs(got[name].astype(np.int64) - want)
        assert apart.max() <= steps and (apart > 0).mean() <= share, (name, apart.max(), (apart > 0).mean())
    return rules


def some(dtype: str, *shape: int, seed: int = 0) -> Array:
    """Every byte, the extremes at the ends."""
    limits = np.iinfo(dtype)
    data = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape)
    data.flat[0], data.flat[-1] = limits.min, limits.max
    return data.astype(dtype)


ZEROS = {"int8": (-128, 0, 127), "uint8": (0, 131, 255)}
PAIRS = [(a, b) for a in ("int8", "uint8") for b in ("int8", "uint8")]


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_integer_products(tmp_path: Path, left: str, right: str) -> None:
    """MatMulInteger with every pair of zero points at the extremes, one a row and one a column too; bit for bit."""
    weights: dict[str, Any] = {"b": some(right, 9, 5)}
    nodes, outputs = [], []
    points = {f"l{i}": np.array(zero, left) for i, zero in enumerate(ZEROS[left])} | {"lr": some(left, 7)}
    others = {f"r{i}": np.array(zero, right) for i, zero in enumerate(ZEROS[right])} | {"rc": some(right, 5)}
    for a in [*points, ""]:
        for b in [*others, ""]:
            nodes.append(node("MatMulInteger", ["a", "b", a, b], [name := f"y_{a}_{b}"]))
            outputs.append(value(name, [7, 5], TensorProto.INT32))
    nodes = [each for each in nodes if "lr" not in each.input]  # ONNX Runtime takes one zero point for all rows alone
    outputs = [each for each in outputs if "_lr_" not in each.name]
    inputs = [value("a", [7, 9], ONNX_TYPE[left])]
    used = {name: x for name, x in {**points, **others}.items() if name != "lr"}
    rules = agree(write(tmp_path, model(nodes, inputs, outputs, **weights, **used)), {"a": some(left, 7, 9, seed=1)})
    assert "cpu.matmul_packed" in rules


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_quantized_products(tmp_path: Path, left: str, right: str) -> None:
    """QLinearMatMul, per tensor and per column; ONNX Runtime has it for results of the left operand's type."""
    weights: dict[str, Any] = {"b": some(right, 24, 40), "sa": np.float32(0.013), "sb": np.float32(0.02)}
    weights |= {"sbs": np.linspace(0.001, 0.04, 40, dtype="float32"), "sy": np.float32(0.4)}
    weights |= {"za": np.array(ZEROS[left][1] + 3, left), "zb": np.array(ZEROS[right][1], right)}
    weights |= {"zbs": np.full(40, ZEROS[right][1], right), "zy": np.array(ZEROS[left][1] - 2, left)}
    nodes = [node("QLinearMatMul", ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"], ["y"])]
    nodes.append(node("QLinearMatMul", ["a", "sa", "za", "b", "sbs", "zbs", "sy", "zy"], ["z"]))
    outputs = [value(name, [2, 6, 40], ONNX_TYPE[left]) for name in "yz"]
    path = write(tmp_path, model(nodes, [value("a", [2, 6, 24], ONNX_TYPE[left])], outputs, **weights))
    assert "cpu.matmul_packed" in agree(path, {"a": some(left, 2, 6, 24, seed=1)})


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("point", [0, 1, 2])
def test_pairs_around_a_product(tmp_path: Path, left: str, right: str, point: int) -> None:
    """QuantizeLinear and DequantizeLinear around a product with a bias and Relu: bytes are multiplied."""
    weights: dict[str, Any] = {
        "sx": np.float32(0.03),
        "zx": np.array(ZEROS[left][point], left),
        "w": some(right, 40, 24),
    }
    weights |= {"sw": np.linspace(0.001, 0.04, 40, dtype="float32"), "zw": some(right, 40, seed=3)}
    weights |= {"bias": some("int8", 40).astype("int32") * 50, "sb": weights["sw"] * weights["sx"]}
    weights |= {"zb": np.zeros(40, "int32"), "sy": np.float32(0.11), "zy": np.array(ZEROS[left][1], left)}
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["v"], axis=0),
        node("DequantizeLinear", ["bias", "sb", "zb"], ["c"], axis=0),
        node("Gemm", ["d", "v", "c"], ["g"], transB=1),
        node("Relu", ["g"], ["r"]),
        node("QuantizeLinear", ["r", "sy", "zy"], ["y"]),
    ]
    outputs = [value("g", [6, 40]), value("q", [6, 24], ONNX_TYPE[left]), value("y", [6, 40], ONNX_TYPE[left])]
    path = write(tmp_path, model(nodes, [value("x", [6, 24])], outputs, **weights))
    x = np.random.default_rng(5).standard_normal((6, 24)).astype("float32") * 4
    x[0, :6] = np.float32(0.03) * np.array([0.5, 1.5, -0.5, -2.5, 1e6, -1e6], "float32")
    rules = agree(path, {"x": x}, steps=1)
    # Without an instruction for bytes few rows are multiplied with weights that are read as they are.
    assert "cpu.matmul_packed" in rules or not {"avx512vnni", "avxvnni"} & host_features()


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("point", [0, 1])
def test_a_network_of_convolutions(tmp_path: Path, dtype: str, point: int) -> None:
    """Few channels, padding, depthwise, strides, groups, a residual, a pool; a padding is the zero point, in bytes.

    All scales are powers of 2, so that no float is rounded.
    """
    weights: dict[str, Any] = {"s": np.float32(2**-4), "z": np.array(ZEROS[dtype][point], dtype)}
    nodes: list[Any] = []

    def quantized(x: str) -> str:
        nodes.append(node("QuantizeLinear", [x, "s", "z"], [f"{x}_q"]))
        nodes.append(node("DequantizeLinear", [f"{x}_q", "s", "z"], [f"{x}_d"]))
        return f"{x}_d"

    def convolved(x: str, name: str, *shape: int, **attrs: Any) -> str:
        drawn = np.random.default_rng([len(weights), *shape]).integers(-128, 128, shape)
        weights.update({f"{name}_w": drawn.astype("int8"), f"{name}_z": np.zeros(shape[0], "int8")})
        weights[f"{name}_s"] = (2.0 ** -(7 + np.arange(shape[0]) % 3)).astype("float32") / np.float32(
            np.prod(shape[1:3])
        )
        weights[f"{name}_s"] = np.exp2(np.floor(np.log2(weights[f"{name}_s"]))).astype("float32")
        weights[f"{name}_b"] = (drawn.reshape(shape[0], -1)[:, 0] * 2.0**-6).astype("float32")
        nodes.append(node("DequantizeLinear", [f"{name}_w", f"{name}_s", f"{name}_z"], [f"{name}_v"], axis=0))
        nodes.append(node("Conv", [x, f"{name}_v", f"{name}_b"], [name], **attrs))
        return quantized(name)

    around = [1, 1, 1, 1]
    stem = convolved(quantized("x"), "few", 24, 3, 3, 5, pads=[1, 2, 1, 2])
    first = convolved(stem, "a", 32, 24, 3, 3, pads=around)
    deep = convolved(first, "b", 32, 1, 3, 3, pads=around, group=32)
    grouped = convolved(deep, "c", 64, 16, 3, 3, pads=around, group=2, strides=[2, 1])
    side = convolved(first, "d", 64, 32, 1, 1, strides=[2, 1])
    nodes += [node("Add", [grouped, side], ["e"]), node("Relu", ["e"], ["f"])]
    nodes.append(node("MaxPool", [quantized("f")], ["g"], kernel_shape=[3, 3], strides=[2, 2], pads=around))
    convolved(quantized("g"), "y", 20, 64, 1, 1)
    outputs = [value("y_q", [1, 20, 4, 7], ONNX_TYPE[dtype])]
    path = write(tmp_path, model(nodes, [value("x", [1, 3, 15, 13])], outputs, **weights))
    x = np.random.default_rng(5).standard_normal((1, 3, 15, 13)).astype("float32") * 4
    rules = agree(path, {"x": x})
    assert {"cpu.conv2d_blocked", "cpu.depthwise_blocked"} <= set(rules)


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("groups", [1, 2])
def test_quantized_convolutions(tmp_path: Path, left: str, groups: int) -> None:
    """QLinearConv with a bias, padded where the zero point is no zero, and ConvInteger."""
    weights: dict[str, Any] = {"w": some("int8" if left == "int8" else "uint8", 6, 4 // groups, 3, 3)}
    weights |= {"sx": np.float32(0.02), "zx": np.array(ZEROS[left][2], left), "zw": np.array(3, weights["w"].dtype)}
    weights |= {"sw": np.float32(0.01), "sy": np.float32(0.6), "zy": np.array(ZEROS[left][1], left)}
    weights |= {"b": np.arange(-3, 3, dtype="int32") * 900}
    nodes = [
        node(
            "QLinearConv", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"], ["y"], pads=[1, 0, 2, 1], group=groups
        ),
    ]
    outputs = [value("y", [2, 6, 8, 6], ONNX_TYPE[left])]
    if left == "uint8":
        nodes.append(
            node("ConvInteger", ["x", "w", "zx", "zw"], ["i"], pads=[1, 0, 2, 1], group=groups, strides=[2, 1])
        )
        outputs.append(value("i", [2, 6, 4, 6], TensorProto.INT32))
    path = write(tmp_path, model(nodes, [value("x", [2, 4, 7, 7], ONNX_TYPE[left])], outputs, **weights))
    agree(path, {"x": some(left, 2, 4, 7, 7, seed=4)})


def test_dynamic_quantization(tmp_path: Path) -> None:
    """DynamicQuantizeLinear, MatMulInteger and the scales behind it, as ONNX Runtime's quantizer writes them."""
    weights = {"w": some("int8", 32, 48), "sw": np.float32(0.02), "zw": np.int8(0)}
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "sx", "zx"]),
        node("MatMulInteger", ["q", "w", "zx", "zw"], ["i"]),
        node("Cast", ["i"], ["f"], to=FLOAT),
        node("Mul", ["sx", "sw"], ["s"]),
        node("Mul", ["f", "s"], ["y"]),
    ]
    outputs = [value("q", [5, 32], TensorProto.UINT8), value("i", [5, 48], TensorProto.INT32), value("y", [5, 48])]
    path = write(tmp_path, model(nodes, [value("x", [5, 32])], outputs, **weights))
    x = np.random.default_rng(2).standard_normal((5, 32)).astype("float32")
    assert "cpu.matmul_packed" in agree(path, {"x": x})


def test_rounding_and_saturation(tmp_path: Path) -> None:
    """Halves to even, both ends, infinities, and parameters for each index of an axis."""
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, np.inf, -np.inf, 127.5, 126.5, -128.5]] * 3, "float32")
    weights = {"one": np.float32(1), "s3": np.array([1, 2, 0.25], "float32")}
    nodes, outputs = [], []
    for dtype in ("int8", "uint8"):
        for i, zero in enumerate(ZEROS[dtype]):
            weights |= {f"{dtype}{i}": np.array(zero, dtype), f"{dtype}{i}s": np.array([zero, 1, zero], dtype)}
            for name, scale, axis in ((f"{dtype}{i}", "one", 1), (f"{dtype}{i}s", "s3", 0)):
                nodes.append(node("QuantizeLinear", ["x", scale, name], [f"q_{name}"], axis=axis))
                nodes.append(node("DequantizeLinear", [f"q_{name}", scale, name], [f"d_{name}"], axis=axis))
                outputs += [value(f"q_{name}", [3, 12], ONNX_TYPE[dtype]), value(f"d_{name}", [3, 12])]
    agree(write(tmp_path, model(nodes, [value("x", [3, 12])], outputs, **weights)), {"x": x})


def test_operators_of_onnx_runtimes_quantizer(tmp_path: Path) -> None:
    """QLinearAdd, QLinearMul, QGemm and others of com.microsoft; a step apart where a value is on a boundary.

    ONNX Runtime's QLinearSoftmax adds exponentials from a table of integers, and is off by a step more often.
    """
    weights: dict[str, Any] = {"s": np.float32(0.02), "t": np.float32(0.031), "u": np.float32(0.05)}
    weights |= {"v": np.float32(0.004), "z": np.uint8(120), "o": np.uint8(7), "b": some("uint8", 8, 16, seed=2)}
    weights |= {"w": some("int8", 12, 16, seed=3), "sw": np.linspace(0.001, 0.01, 12, dtype="float32")}
    weights |= {"zw": np.zeros(12, "int8"), "c": np.arange(12, dtype="int32") * 700}
    both, one = ["a", "s", "z", "b", "t", "o", "u", "z"], ["a", "s", "z", "v", "o"]
    sources: dict[str, tuple[list[str], dict[str, Any]]] = {
        "QLinearAdd": (both, {}),
        "QLinearMul": (both, {}),
        "QLinearSigmoid": (one, {}),
        "QLinearLeakyRelu": (["a", "s", "z", "s", "z"], {"alpha": 0.2}),
        "QLinearSoftmax": (one, {"axis": -1, "opset": 13}),
        "QLinearConcat": (["u", "z", "a", "s", "z", "b", "t", "o"], {"axis": 0}),
        "QGemm": (["a", "s", "z", "w", "sw", "zw", "c", "u", "z"], {"transB": 1, "alpha": 1.0}),
        "QLinearGlobalAveragePool": (["i", "s", "z", "s", "o"], {"channels_last": 0}),
    }
    nodes = [node(op, names, [f"y_{op}"], domain="com.microsoft", **more) for op, (names, more) in sources.items()]
    nodes.append(node("QGemm", ["a", "s", "z", "w", "sw", "zw"], ["y_f"], domain="com.microsoft", transB=1))
    shapes = {"QLinearConcat": [16, 16], "QGemm": [8, 12], "QLinearGlobalAveragePool": [2, 4, 1, 1]}
    outputs = [value(f"y_{op}", shapes.get(op, [8, 16]), TensorProto.UINT8) for op in sources]
    inputs = [value("a", [8, 16], TensorProto.UINT8), value("i", [2, 4, 5, 5], TensorProto.UINT8)]
    path = write(tmp_path, model(nodes, inputs, [*outputs, value("y_f", [8, 12])], **weights))
    assert "cpu.matmul_packed" in agree(
        path, {"a": some("uint8", 8, 16), "i": some("uint8", 2, 4, 5, 5)}, steps=1, share=0.05
    )


def test_rows_of_symbolic_number(tmp_path: Path) -> None:
    """Bytes of a weight that is not symmetric stay codes."""
    weights = {"s": np.float32(0.03), "z": np.uint8(131), "w": some("int8", 24, 40), "y": np.int8(1)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "s", "y"], ["v"]),
        node("MatMul", ["d", "v"], ["p"]),
    ]
    path = write(tmp_path, model(nodes, [value("x", ["n", 24])], [value("p", ["n", 40])], **weights))
    rules = agree(path, {"x": np.random.default_rng(0).standard_normal((5, 24)).astype("float32")})
    assert "cpu.matmul_blocks" in rules


def test_the_scale_of_nothing_but_zeros_is_one(tmp_path: Path) -> None:
    proto = model(
        [node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])],
        [value("x", ["n"])],
        [value("y", ["n"], TensorProto.UINT8), value("scale", []), value("zero", [], TensorProto.UINT8)],
    )
    session = relaxc.load(relaxc.compile(write(tmp_path, proto)).path)
    runtime = onnxruntime.InferenceSession(proto.SerializeToString())
    for x in ([0.0, -0.0], [0.0, 1.0, -3.0]):
        call = {"x": np.array(x, "float32")}
        got, want = session(**call), runtime.run(["y", "scale", "zero"], call)
        for name, each in zip(("y", "scale", "zero"), want, strict=True):
            np.testing.assert_array_equal(got[name], each)
