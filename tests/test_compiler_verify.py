"""What a comparison is made with: a reference that may not run, and inputs that show what others hide."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import relaxc
from relaxc.service import compiler, frontend
from relaxc.service.compiling import verifier
from relaxc.service.errors import ModelMalformed, UnsupportedModel, VerificationFailed
from relaxc.service.request import CompileOptions
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write
from tests.test_compiler_quantized import judged

UNVERIFIED = CompileOptions(verify=False)


def out_of_range(folder: Path) -> Path:
    """Row 1 of a table of one row, for an id of 0: ONNX Runtime stops there, and at others too."""
    table = np.ones((1, 8), "float32")
    graph = [node("Add", ["ids", "one"], ["next"]), node("Gather", ["table", "next"], ["y"])]
    ids = value("ids", [64], TensorProto.INT64)
    return write(folder, model(graph, [ids], [value("y", [64, 8])], table=table, one=np.int64(1)))


def test_a_model_that_its_reference_stops_in_compiles_unverified_alone(tmp_path: Path) -> None:
    path = out_of_range(tmp_path)
    made = relaxc.compile(path, options=UNVERIFIED)
    assert str(made.manifest.verification).startswith("not verified: the reference does not run it")
    with pytest.raises(ModelMalformed, match="ONNX Runtime stops in the model") as refused:
        relaxc.compile(path)
    assert "--no-verify" in refused.value.remedy


@pytest.mark.parametrize("name", ["Div", "Mod", "Gather"])
def test_integers_at_which_the_reference_stops_are_drawn_otherwise(tmp_path: Path, name: str) -> None:
    """A divisor is not 0, and a table of one row has row 0 alone."""
    table = {} if name != "Gather" else {"x": np.ones((1, 8), "float32")}
    inputs = [value(each, [64], TensorProto.INT64) for each in ("x", "z") if each not in table]
    kind = TensorProto.FLOAT if table else TensorProto.INT64
    out = value("y", [64, 8] if table else [64], kind)
    made = relaxc.compile(write(tmp_path, model([node(name, ["x", "z"], ["y"])], inputs, [out], **table)))
    assert made.manifest.verified


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
def test_inputs_and_outputs_without_dims_are_compared(tmp_path: Path, dtype: str) -> None:
    kind = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int8": TensorProto.INT8}
    graph = [
        node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["x", "f"], ["y"]),
        node("Neg", ["f"], ["z"]),
    ]
    given = [value("s", [], kind.get(dtype, TensorProto.BOOL)), value("x", [3])]
    path = write(tmp_path, model(graph, given, [value("y", [3]), value("z", [])]))
    session = load(relaxc.compile(path).path)
    found = session({"s": np.array(1, dtype), "x": np.arange(3, dtype="float32")})
    assert [found["y"].tolist(), found["z"].tolist()] == [[0, 1, 2], -1]


def test_a_product_that_loses_digits_where_inputs_have_one_sign_is_found(tmp_path: Path) -> None:
    """y = x (W + 4096) - 4096 sum(x), of which what has a mean of 0 tells too little."""
    depth = 512
    weights = np.random.default_rng(0).standard_normal((depth, 8)).astype("float32")
    shapes: Any = [value("x", [16, depth])], [value("y", [16, 8])]
    right = write(tmp_path, model([node("MatMul", ["x", "w"], ["y"])], *shapes, w=weights), "right.onnx")
    shift = np.float32(24)
    nodes = [
        node("MatMul", ["x", "w"], ["far"]),
        node("MatMul", ["x", "ones"], ["sum"]),
        node("Sub", ["far", "sum"], ["y"]),
    ]
    held = {"w": weights + shift, "ones": np.full((depth, 8), shift, "float32")}
    made = relaxc.compile(write(tmp_path, model(nodes, *shapes, **held), "wrong.onnx"), options=UNVERIFIED)
    request = compiler.prepare(right)
    signature = frontend.inspect(right, request.model.format).signature
    with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
        verifier.verify(request, signature, lambda: load(made.path), lambda *_: None)


def test_inputs_of_one_sign_are_left_out_where_the_model_has_no_numbers_for_them(tmp_path: Path) -> None:
    path = write(tmp_path, model([node("Acos", ["x"], ["y"])], [value("x", [64])], [value("y", [64])]))
    found: Any = relaxc.compile(path).manifest.verification
    assert found["passed"] and found["outputs"][0]["nonfinite"] > 0


def test_inputs_for_which_an_output_is_nan_throughout_still_refute(tmp_path: Path) -> None:
    """The least of what is drawn is below 0, so that its logarithm is NaN; that of one sign has one."""

    def logarithm(*first: str) -> Any:
        nodes = [node("ReduceMin", ["x"], ["x0"], keepdims=0)]
        nodes += [node(op, [f"x{place}"], [f"x{place + 1}"]) for place, op in enumerate(first)]
        return model([*nodes, node("Log", [f"x{len(first)}"], ["y"])], [value("x", [64])], [value("y", [])])

    right = write(tmp_path, logarithm(), "right.onnx")
    judged(right, right)
    with pytest.raises(VerificationFailed, match="NaN or infinite on one side"):
        judged(right, write(tmp_path, logarithm("Abs"), "wrong.onnx"))


@pytest.mark.parametrize("op", ["Identity", "Relu", "Transpose", "Cast", "MatMul"])
def test_inputs_and_outputs_of_bfloat16_are_compared(tmp_path: Path, op: str) -> None:
    """ONNX Runtime takes some of these as they are, but no arrays of numpy for them."""
    low, x = TensorProto.BFLOAT16, value("x", [16, 16], TensorProto.BFLOAT16)
    given, attributes = ["x", "x"] if op == "MatMul" else ["x"], {"to": TensorProto.FLOAT} if op == "Cast" else {}
    y = value("y", [16, 16], TensorProto.FLOAT if op == "Cast" else low)
    path = write(tmp_path, model([node(op, given, ["y"], **attributes)], [x], [y]))
    found: Any = relaxc.compile(path).manifest.verification
    assert found["passed"] and found["outputs"][0]["compared"] == 256


ALONE = """
import sys
import numpy as np
import relaxc
outputs = relaxc.load(sys.argv[1])(x=np.array([[0, 2, 0], [3, 0, -1]], np.float32))
assert "tvm" not in sys.modules
print(outputs["y"].tolist())
"""


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("shape", [[2, 3], ["a", "b"]])
def test_sizes_that_values_decide_need_the_runtime_alone(tmp_path: Path, shape: Any) -> None:
    """In Python; tests/packaging/test_package.py has it of a package."""
    graph = model([node("NonZero", ["x"], ["y"])], [value("x", shape)], [value("y", [2, "n"], TensorProto.INT64)])
    made = relaxc.compile(write(tmp_path, graph), output=tmp_path / "model.so")
    assert made.manifest.verified is True
    said = subprocess.run([sys.executable, "-c", ALONE, made.path], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[[0, 1, 1], [1, 0, 2]]"


def test_what_only_python_computes_is_refused_by_name(tmp_path: Path) -> None:
    graph = model([node("Unique", ["x"], ["y"])], [value("x", [5])], [value("y", ["n"])])
    with pytest.raises(UnsupportedModel, match="unique"):
        relaxc.compile(write(tmp_path, graph))
