"""NaN comes out where it went in: in PrimFuncs, and in networks beside ONNX Runtime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto
from tvm.script import tirx as T

from relaxc.service.frontend import reference
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.keep_nan import KeepNan
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import model, node, value, write
from tests.frontend.onnx.test_quantized import compiled

pipeline.register()
NAN, SIZE = float("nan"), 67
X = np.resize(np.array([NAN, 0.0, -0.0, 1.0, np.inf, -np.inf, -1.0, NAN], "float32"), SIZE)
Y = np.resize(np.array([0.0, NAN, 1.0, NAN, np.inf, -np.inf, NAN, NAN], "float32"), SIZE)


def elementwise(function, out: str = "float32"):
    """The PrimFunc that computes `function` of two vectors, 16 at a time and then one by one."""

    @T.prim_func
    def func(a: T.Buffer((SIZE,), "float32"), b: T.Buffer((SIZE,), "float32"), c: T.Buffer((SIZE,), out)):
        for i in range(SIZE // 16):
            for lane in T.vectorized(16):
                c[i * 16 + lane] = function(a[i * 16 + lane], b[i * 16 + lane])
        for i in range(SIZE % 16):
            c[SIZE // 16 * 16 + i] = function(a[SIZE // 16 * 16 + i], b[SIZE // 16 * 16 + i])

    return func


@pytest.mark.parametrize(
    ("function", "numpys", "out"),
    [
        (lambda x, y: T.max(x, T.float32(0)), lambda x, y: np.maximum(x, 0), "float32"),
        (lambda x, y: T.min(T.max(x, T.float32(-0.5)), T.float32(0.5)), lambda x, y: np.clip(x, -0.5, 0.5), "float32"),
        (lambda x, y: T.max(x, y), np.maximum, "float32"),
        (lambda x, y: T.min(x, y), np.minimum, "float32"),
        (lambda x, y: T.Cast("bool", x), lambda x, y: x.astype(bool), "bool"),
        (lambda x, y: x != y, np.not_equal, "bool"),
        (lambda x, y: x != T.float32(1), lambda x, y: x != 1, "bool"),
    ],
    ids=["relu", "clip", "max", "min", "bool", "unequal", "unequal-constant"],
)
def test_elements(function, numpys, out):
    library = tvm.tirx.build(
        elementwise(function, out).with_attr("global_symbol", "main"), to_tvm(resolve("auto")), pipeline=pipeline.NAME
    )
    got = tvm.runtime.tensor(np.zeros(SIZE, out))
    library["main"](tvm.runtime.tensor(X), tvm.runtime.tensor(Y), got)
    np.testing.assert_array_equal(got.numpy(), numpys(X, Y))


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "auto"])
@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_reduction_keeps_nan_wherever_it_comes(dtype, lanes, target):
    @T.prim_func
    def largest(a: T.Buffer((SIZE, lanes), dtype), b: T.Buffer((2, lanes), dtype)):
        for lane in T.vectorized(lanes):
            b[0, lane] = T.Cast(dtype, T.float32(-3e38))
        for lane in T.vectorized(lanes):
            b[1, lane] = T.Cast(dtype, T.float32(3e38))
        for i in range(SIZE):
            for lane in T.vectorized(lanes):
                b[0, lane] = T.max(b[0, lane], a[i, lane])
            for lane in T.vectorized(lanes):
                b[1, lane] = T.min(a[i, lane], b[1, lane])

    library = tvm.tirx.build(
        largest.with_attr("global_symbol", "main"), to_tvm(resolve(target)), pipeline=pipeline.NAME
    )
    for sign in (1, -1):
        for place in (None, 0, 1, SIZE // 2, SIZE - 1):
            values = np.random.default_rng(0).standard_normal((SIZE, lanes)).astype(dtype)
            values[3], values[4] = np.inf, -np.inf
            if place is not None:
                values[place, lanes // 2] = np.copysign(NAN, sign)
            got = tvm.runtime.tensor(np.zeros((2, lanes), dtype))
            library["main"](tvm.runtime.tensor(values), got)
            np.testing.assert_array_equal(got.numpy(), [values.max(0), values.min(0)])


_LARGEST = """
@T.prim_func
def main(a: T.Buffer((64, 16), "float32"), {name}: T.Buffer((16,), "float32")):
    T.func_attr({{"global_symbol": "main"}})
    for lane in T.vectorized(16):
        {name}[lane] = T.float32(-3e38)
    for i in range(64):
        for lane in T.vectorized(16):
            {name}[lane] = T.max({name}[lane], a[i, lane])
"""


@pytest.mark.parametrize("name", ["safe_softmax_maxelem", "softmax_maxelem_lanes", "attention_top_1"])
@pytest.mark.usefixtures("code_to_be_read")
def test_the_largest_that_a_softmax_subtracts_costs_one_instruction(name):
    def code(name: str) -> str:
        func = tvm.script.from_source(_LARGEST.format(name=name))
        return tvm.tirx.build(func, to_tvm(resolve("x86-64-v4")), pipeline=pipeline.NAME).inspect_source("asm")

    assert "vfixupimmps" in code("other")
    assert "vmaxps" in code(name) and not any(word in code(name) for word in ("vfixup", "vcmp", "vblend"))


def test_bounds_of_what_is_quantized_cost_one_instruction_and_nan_becomes_the_lowest():
    @T.prim_func
    def clamped(
        a: T.Buffer((64,), "float32"), low: T.Buffer((), "int32"), high: T.Buffer((), "int32"),
        b: T.Buffer((64,), "float32"),
    ):  # fmt: skip
        for i in range(4):
            for lane in T.vectorized(16):
                b[i * 16 + lane] = T.min(
                    T.max(a[i * 16 + lane], T.reinterpret("float32", low[()])), T.reinterpret("float32", high[()])
                )

    library = tvm.tirx.build(
        clamped.with_attr("global_symbol", "main"), to_tvm(resolve("auto")), pipeline=pipeline.NAME
    )
    assert "llvm.maximum" not in library.inspect_source("ll") and "llvm.minimum" not in library.inspect_source("ll")
    x, bounds = np.resize(X, 64), np.array([-0.5, 2.0], "float32").view("int32")
    low, high = (tvm.runtime.tensor(np.asarray(bound)) for bound in bounds)
    got = tvm.runtime.tensor(np.zeros(64, "float32"))
    library["main"](tvm.runtime.tensor(x), low, high, got)
    np.testing.assert_array_equal(got.numpy(), np.where(np.isnan(x), -0.5, np.clip(x, -0.5, 2)))


def test_other_targets_stay():
    @T.prim_func
    def relu(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        for i in range(64):
            b[i] = T.max(a[i], T.float32(0))

    def kept(target) -> bool:
        func = relu.with_attr("target", to_tvm(resolve(target)))
        return bool(tvm_ffi.structural_equal(KeepNan()(tvm.IRModule({"main": func}))["main"], func))

    assert kept("cuda-sm90") and not kept("x86-64-v4")


def test_a_network_is_as_onnx_runtime_has_it(tmp_path):
    ops = {
        "cast": node("Cast", ["x"], ["cast"], to=TensorProto.BOOL),
        "max": node("Max", ["x", "y"], ["max"]), "min": node("Min", ["x", "y"], ["min"]),
        "relu": node("Relu", ["x"], ["relu"]), "clip": node("Clip", ["x", "zero", "quarter"], ["clip"]),
        "sign": node("Sign", ["x"], ["sign"]), "elu": node("Elu", ["x"], ["elu"]),
        "selu": node("Selu", ["x"], ["selu"]), "celu": node("Celu", ["x"], ["celu"]),
        "hard": node("HardSwish", ["x"], ["hard"]), "product": node("MatMul", ["x", "w"], ["product"]),
    }  # fmt: skip
    nodes = [*ops.values(), node("Relu", ["product"], ["linear"])]
    outputs = [value(name, [SIZE], TensorProto.BOOL if name == "cast" else TensorProto.FLOAT) for name in ops]
    outputs[-1] = value("linear", [5])
    weights = np.random.default_rng(0).standard_normal((SIZE, 5), np.float32)
    path = write(
        tmp_path,
        model(
            nodes,
            [value("x", [SIZE]), value("y", [SIZE])],
            outputs,
            zero=np.float32(0),
            quarter=np.float32(0.25),
            w=weights,
        ),
    )
    inputs = {"x": X, "y": Y}
    got, _ = compiled(path, inputs)
    for name, want in reference(path, ModelFormat.ONNX)(inputs).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-5, err_msg=name)


def test_the_largest_of_a_relu_is_nan_where_one_is(tmp_path):
    nodes = [
        node("Relu", ["x"], ["relu"]),
        node("ReduceMax", ["relu", "axes"], ["most"], keepdims=0),
        node("Relu", ["images"], ["image"]),
        node("MaxPool", ["image"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    inputs = [value("x", [3, 40]), value("images", [1, 20, 4, 4])]
    outputs = [value("most", [40]), value("pooled", [1, 20, 2, 2])]
    path = write(tmp_path, model(nodes, inputs, outputs, axes=np.array([0])))
    draw = np.random.default_rng(0)
    x, images = draw.standard_normal((3, 40), np.float32), draw.standard_normal((1, 20, 4, 4), np.float32)
    x[1, 3], images[0, 5, 1, 2] = NAN, NAN
    got, _ = compiled(path, {"x": x, "images": images})
    np.testing.assert_array_equal(got["most"], np.maximum(x, 0).max(0))
    windows = np.maximum(images, 0).reshape(1, 20, 2, 2, 2, 2)
    np.testing.assert_array_equal(got["pooled"], windows.max((3, 5)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("kind", "numpys"), [("ArgMax", np.argmax), ("ArgMin", np.argmin)])
def test_the_place_of_the_largest_is_that_of_the_first_nan(kind, numpys, dtype, tmp_path):
    """ONNX Runtime's differs: it loses all but the first of a row. Of bfloat16 every place was wrong."""
    onnxs, numpy_dtype = {
        "float32": (TensorProto.FLOAT, np.float32), "float16": (TensorProto.FLOAT16, np.float16),
        "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    }[dtype]  # fmt: skip
    nodes = [node(kind, ["x"], ["rows"], axis=1), node(kind, ["x"], ["columns"], axis=0)]
    outputs = [value("rows", [37, 1], TensorProto.INT64), value("columns", [1, 40], TensorProto.INT64)]
    path = write(tmp_path, model(nodes, [value("x", [37, 40], onnxs)], outputs))
    x = np.random.default_rng(0).standard_normal((37, 40)).astype(numpy_dtype)
    for places in ([], [0], [37 * 20 + 1], [-1], slice(None, None, 7)):
        x.reshape(-1)[places] = NAN
        got, _ = compiled(path, {"x": x})
        wide = x.astype("float32")
        np.testing.assert_array_equal(got["rows"], numpys(wide, 1, keepdims=True))
        np.testing.assert_array_equal(got["columns"], numpys(wide, 0, keepdims=True))
