"""Element types that travel as codes: compiled and verified from file to file, as arrays of ml_dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import relaxc
from relaxc.service.codes import FORMATS
from relaxc.service.errors import InputType, UnsupportedModel
from relaxc.service.frontend import load
from relaxc.service.frontend.onnx.evaluator import evaluator
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import FLOAT, node, value, write

Array = np.ndarray[Any, Any]


def kind(name: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, name))))


def drawn(name: str, shape: tuple[int, ...], seed: int) -> Array:
    """Whole numbers of every code; of floats those of a normal distribution."""
    row, rng = FORMATS[name], np.random.default_rng(seed)
    numbers = rng.standard_normal(shape) if row.is_float else rng.integers(row.low, row.high + 1, shape)
    return (numbers if row.is_signed else np.abs(numbers)).astype("float32").astype(getattr(ml_dtypes, name))


def both(name: str) -> Any:
    """What is moved, or a constant in its place, and then widened, computed with, narrowed, and quantized."""
    held = drawn(name, (4, 3), 1)
    branches = [
        helper.make_graph([node("Identity", [each], ["chosen"])], each, [], [value("chosen", [4, 3], kind(name))])
        for each in ("t", "w")
    ]
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("If", ["c"], ["moved"], then_branch=branches[0], else_branch=branches[1]),
        node("Cast", ["moved"], ["wide"], to=FLOAT),
        node("Add", ["wide", "f"], ["sum"]),
        node("Cast", ["sum"], ["narrow"], to=kind(name)),
    ]
    outputs = [value("moved", [4, 3], kind(name)), value("wide", [4, 3]), value("narrow", [4, 3], kind(name))]
    if FORMATS[name].has_zero:
        nodes.append(node("QuantizeLinear", ["f", "s", "z"], ["q"], axis=0))
        nodes.append(node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0))
        outputs += [value("q", [4, 3], kind(name)), value("d", [4, 3])]
    tensors = {"w": held, "s": np.array([0.5, 1, 0.25, 2], "float32")}
    tensors["z"] = np.zeros(4, np.int8).astype("float32").astype(held.dtype)
    held_tensors = [onnx.numpy_helper.from_array(array, at) for at, array in tensors.items()]
    inputs = [value("x", [3, 4], kind(name)), value("f", [4, 3]), value("c", [], TensorProto.BOOL)]
    graph = helper.make_graph(nodes, "codes", inputs, outputs, held_tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)


@pytest.mark.sampled("int4", "float8_e4m3fn", "float8_e8m0fnu")
@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_what_the_evaluator_of_onnx_has(tmp_path: Path, name: str) -> None:
    model = both(name)
    path = write(tmp_path, model)
    session = relaxc.load(relaxc.compile(path, target="x86-64-v3").path)
    given = {"x": drawn(name, (3, 4), 2), "f": np.abs(np.random.default_rng(3).standard_normal((4, 3), np.float32))}
    given["c"] = np.array(True)
    got = session(given)
    run = evaluator(model)
    for output, want in zip(run.output_names, run.run(None, given), strict=True):
        assert got[output].dtype == want.dtype
        np.testing.assert_array_equal(got[output].astype("float32"), want.astype("float32"), output)
    again = session(given["x"].view(np.uint8), given["f"], given["c"])
    np.testing.assert_array_equal(again["narrow"].view(np.uint8), got["narrow"].view(np.uint8))
    bound = session.bind(given, {"moved": np.empty((4, 3), given["x"].dtype)})
    np.testing.assert_array_equal(bound()["moved"].view(np.uint8), got["moved"].view(np.uint8))
    with pytest.raises(InputType, match=f"it takes {name}"):
        session(given["x"].astype("float32"), given["f"], given["c"])


def test_a_signature_says_what_its_codes_are_of(tmp_path: Path) -> None:
    signature = load(write(tmp_path, both("int4")), ModelFormat.ONNX).signature
    assert [str(spec) for spec in signature.inputs] == ["x: int4[3, 4]", "f: float32[4, 3]", "c: bool[]"]
    assert signature.to_dict()["inputs"][0] == {"name": "x", "dtype": "uint8", "shape": [3, 4], "codes": "int4"}
    assert type(signature).from_dict(signature.to_dict()) == signature


def test_what_computes_with_codes_is_refused_by_name(tmp_path: Path) -> None:
    nodes = [node("com.microsoft::Gelu", ["x"], ["y"])]
    nodes[0].op_type, nodes[0].domain = "Gelu", "com.microsoft"
    int4 = TensorProto.INT4
    graph = helper.make_graph(nodes, "g", [value("x", [2], int4)], [value("y", [2], int4)])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = write(tmp_path, helper.make_model(graph, opset_imports=opsets, ir_version=10))
    with pytest.raises(UnsupportedModel, match="an operand of dtype int4"):
        load(path, ModelFormat.ONNX)


def test_zero_points_of_floats_are_part_of_the_formula(tmp_path: Path) -> None:
    """`(x - zero) · scale`, and back, whatever is drawn for them: so the verification passes."""
    f8 = kind("float8_e5m2")
    nodes = [node("DequantizeLinear", ["x", "s", "z"], ["h"]), node("QuantizeLinear", ["h", "s", "z"], ["y"])]
    inputs = [value("x", [3, 4], f8), value("s", []), value("z", [], f8)]
    graph = helper.make_graph(nodes, "zeros", inputs, [value("y", [3, 4], f8)])
    path = write(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    session = relaxc.load(relaxc.compile(path, target="x86-64-v3").path)
    x, zero = drawn("float8_e5m2", (3, 4), 4), np.array(0.5, ml_dtypes.float8_e5m2)
    got = session(x, np.array(0.5, "float32"), zero)["y"]
    want = (x.astype("float32") - 0.5 + 0.5).astype(x.dtype)
    np.testing.assert_array_equal(got.astype("float32"), want.astype("float32"))


def test_a_scalar_keeps_its_shape(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [node("Identity", ["w"], ["y"])], "g", [], [value("y", [], TensorProto.INT4)],
        [onnx.numpy_helper.from_array(np.array(-3, ml_dtypes.int4), "w")],
    )  # fmt: skip
    path = write(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12))
    got = relaxc.load(relaxc.compile(path, target="x86-64-v3").path)()["y"]
    assert got.shape == ()
    assert int(got) == -3


def test_eight_bit_floats_as_bfloat16_are_verified(tmp_path: Path) -> None:
    """ONNX Runtime has a kernel for that with a float32 in the place of bfloat16, and takes no array for it."""
    nodes = [node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)]
    outputs = [value("y", [5], TensorProto.BFLOAT16)]
    graph = helper.make_graph(nodes, "g", [value("x", [5], kind("float8_e5m2"))], outputs)
    path = write(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12))
    x = drawn("float8_e5m2", (5,), 1)
    assert relaxc.load(relaxc.compile(path, target="x86-64-v3").path)(x)["y"].tolist() == x.tolist()


@pytest.mark.parametrize("name", ["int4", "float8_e4m3fn"])
def test_a_constant_of_sizes_at_run_time_is_of_codes(tmp_path: Path, name: str) -> None:
    held = onnx.numpy_helper.from_array(np.array([-3], np.float32).astype(getattr(ml_dtypes, name)))
    nodes = [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["y"], value=held)]
    graph = helper.make_graph(nodes, "g", [value("x", ["n"])], [value("y", ["n"], kind(name))])
    path = write(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12))
    got = relaxc.load(relaxc.compile(path, target="x86-64-v3").path)(np.zeros(3, "float32"))["y"]
    assert got.astype("float32").tolist() == [-3, -3, -3]


def test_codes_are_kept_as_state(tmp_path: Path) -> None:
    """A cache of keys in 8 bits: verified in steps, read and set as an array of ml_dtypes, saved and loaded."""
    f8 = kind("float8_e5m2")
    nodes = [node("TensorScatter", ["past_key", "u", "i"], ["present_key"], axis=1)]
    nodes.append(node("Cast", ["present_key"], ["y"], to=FLOAT))
    inputs = [value("past_key", [1, 4, 3], f8), value("u", [1, 1, 3], f8), value("i", [1], TensorProto.INT64)]
    outputs = [value("present_key", [1, 4, 3], f8), value("y", [1, 4, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    path = write(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12))
    session = relaxc.load(relaxc.compile(path, target="x86-64-v3").path)
    state = session.state
    assert state is not None
    u, want = drawn("float8_e5m2", (1, 1, 3), 1), np.zeros((1, 4, 3), "float32")
    want[:, 2:3] = u.astype("float32")
    np.testing.assert_array_equal(session(u, np.array([2]))["y"], want)
    held = state["past_key"]
    assert held.dtype == u.dtype
    np.testing.assert_array_equal(held.astype("float32"), want)
    state.save(tmp_path / "state.npz")
    state["past_key"] = np.ones((1, 4, 3), u.dtype)
    assert session(u, np.array([2]))["y"][0, 0, 0] == 1
    state.load(tmp_path / "state.npz")
    np.testing.assert_array_equal(state["past_key"].astype("float32"), want)
    with pytest.raises(InputType, match="it takes float8_e5m2"):
        state["past_key"] = want
