"""Operands that the data decides, beside ONNX Runtime: one program a family of operators, called with several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import relaxc
from relaxc.service.errors import ArtifactError, UnsupportedModel
from tests.frontend.onnx.harness import FLOAT, INT64, compiled, model, node, value

X = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")

MOST = 2**63 - 1
CUBE = np.round(np.random.default_rng(1).standard_normal((2, 3, 4)) * 8).astype("float32")

IMAGE = value("x", ["a", 6])


def _ints(*numbers: int) -> Any:
    return np.array(numbers, "int64")


CASES: dict[str, tuple[list[Any], list[Any], dict[str, Any], list[dict[str, Any]]]] = {
    "shapes": (
        [node("Reshape", ["x", "s"], ["r"]), node("Tile", ["r", "s"], ["t"]), node("ConstantOfShape", ["s"], ["c"])],
        [IMAGE, value("s", [3], INT64)],
        {},
        [{"x": X, "s": _ints(4, 3, 2)}, {"x": X, "s": _ints(1, 24, 1)}],
    ),
    "a shape with 0 and -1": (
        [node("Reshape", ["x", "s"], ["r"])],
        [IMAGE, value("s", [3], INT64)],
        {},
        [{"x": X, "s": _ints(0, -1, 3)}, {"x": X, "s": _ints(-1, 2, 1)}],
    ),
    "slices": (
        [node("Slice", ["x", "s", "e", "axes", "steps"], ["r"]), node("Slice", ["x", "zero", "n", "axis"], ["q"])],
        [IMAGE, value("s", [2], INT64), value("e", [2], INT64), value("n", [1], INT64)],
        {"axes": _ints(0, 1), "steps": _ints(1, 2), "zero": _ints(0), "axis": _ints(1)},
        [
            {"x": X, "s": _ints(1, 0), "e": _ints(3, 6), "n": _ints(3)},
            {"x": X, "s": _ints(-2, -4), "e": _ints(100, -1), "n": _ints(0)},
            {"x": X, "s": _ints(3, -9), "e": _ints(1, 2**62), "n": _ints(99)},
        ],
    ),
    "ranges and masks": (
        [
            node("ReduceMax", ["n"], ["most"], keepdims=0),
            node("Range", ["zero", "most", "one"], ["places"]),
            node("Unsqueeze", ["n", "axis"], ["lengths"]),
            node("Less", ["places", "lengths"], ["mask"]),
            node("Shape", ["mask"], ["s"]),
            node("Expand", ["half", "s"], ["wide"]),
            node("Where", ["mask", "wide", "half"], ["r"]),
        ],
        [value("n", ["batch"], INT64)],
        {"zero": np.int64(0), "one": np.int64(1), "axis": _ints(1), "half": np.array(0.5, "float32")},
        [{"n": _ints(3, 5)}, {"n": _ints(1, 0, 2)}, {"n": _ints(0)}],
    ),
    "numbers of places": (
        [
            node("TopK", ["x", "k"], ["values", "found"]),
            node("OneHot", ["q", "k", "bits"], ["ones"]),
            node("Trilu", ["x", "d"], ["low"], upper=0),
            node("Pad", ["x", "widths"], ["wide"]),
            node("Split", ["x", "parts"], ["left", "right"], axis=1),
            node("Expand", ["x", "same"], ["r"]),
        ],
        [IMAGE, *(value(n, s, INT64) for n, s in (("k", [1]), ("q", ["b"]), ("d", []), ("widths", [4]),
                                                  ("parts", [2]), ("same", [3])))],
        {"bits": np.array([0, 1], "float32")},
        [
            {"x": X, "k": _ints(3), "q": _ints(1, -1, 7), "d": np.array(1), "widths": _ints(1, 0, 2, 3),
             "parts": _ints(2, 4), "same": _ints(2, 1, 6)},
            {"x": X, "k": _ints(6), "q": _ints(5, 0), "d": np.array(-2), "widths": _ints(0, 0, 0, 0),
             "parts": _ints(6, 0), "same": _ints(1, 4, 1)},
        ],
    ),
    "places in all axes": (
        [
            node("Slice", ["cube", "s", "e", "axes", "steps"], ["part"]),
            node("Pad", ["cube", "widths", "half", "axes"], ["wide"]),
            node("Pad", ["cube", "turns", "", "axes"], ["turned"], mode="reflect"),
            node("Pad", ["cube", "rounds", "", "axes"], ["round"], mode="wrap"),
        ],
        [value("cube", ["b", 3, "c"]), *(value(n, [2], INT64) for n in ("s", "e", "axes", "steps")),
         value("widths", [4], INT64), value("turns", [4], INT64), value("rounds", [4], INT64),
         value("half", [])],
        {},
        [
            {"cube": CUBE, "s": _ints(1, 0), "e": _ints(3, 9), "axes": _ints(1, 2), "steps": _ints(1, 2),
             "widths": _ints(1, 0, -1, 2), "turns": _ints(1, 0, 2, 3), "rounds": _ints(4, -1, -1, 5),
             "half": np.array(0.5, "float32")},
            {"cube": CUBE, "s": _ints(-1, 9), "e": _ints(-99, 0), "axes": _ints(-1, 0), "steps": _ints(-1, -1),
             "widths": _ints(0, 0, 0, 1), "turns": _ints(3, 1, 0, 1), "rounds": _ints(5, 0, 4, 1),
             "half": np.array(-1, "float32")},
            {"cube": CUBE, "s": _ints(0, 2), "e": _ints(MOST, MOST), "axes": _ints(0, 1), "steps": _ints(MOST, -MOST),
             "widths": _ints(0, 0, 0, 1), "turns": _ints(1, 1, 0, 1), "rounds": _ints(1, -2, 0, 2),
             "half": np.array(-1, "float32")},
        ],
    ),
    "axes": (
        [
            node("ReduceMin", ["x", "axes"], ["rows"], keepdims=0),
            node("ReduceMax", ["cube", "axes"], ["most"]),
            node("ReduceMin", ["cube", "two"], ["least"], keepdims=0),
            node("CumSum", ["cube", "axis"], ["sums"], reverse=1),
            node("Unsqueeze", ["cube", "two"], ["wide"]),
            node("Squeeze", ["wide", "two"], ["same"]),
            node("Neg", ["same"], ["r"]),
        ],
        [IMAGE, value("cube", ["b", 3, "c"]),
         *(value(n, s, INT64) for n, s in (("axes", [1]), ("two", [2]), ("axis", [])))],
        {},
        [
            {"x": X, "cube": CUBE, "axes": _ints(1), "two": _ints(0, 2), "axis": np.array(-1)},
            {"x": X, "cube": CUBE, "axes": _ints(-2), "two": _ints(-1, 1), "axis": np.array(0)},
        ],
    ),
}  # fmt: skip


def _sessions(folder: Path, name: str) -> tuple[relaxc.Session, Callable[[dict[str, Any]], dict[str, Any]]]:
    nodes, inputs, weights, _ = CASES[name]
    read = {each for one in nodes for each in one.input}
    outs = [helper.make_tensor_value_info(n, 0, None) for one in nodes for n in one.output if n not in read]
    for out in outs:
        out.type.tensor_type.elem_type = INT64 if out.name == "found" else FLOAT
    proto = model(nodes, inputs, outs, opset=18, **weights)
    runtime = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [out.name for out in outs]
    return compiled(folder, proto), lambda call: dict(zip(names, runtime.run(names, call), strict=True))


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("name", CASES)
def test_a_program_reads_them(name: str, tmp_path: Path) -> None:
    ours, theirs = _sessions(tmp_path, name)
    for call in CASES[name][3]:
        got, want = ours(**call), theirs(call)
        for output, array in want.items():
            assert got[output].shape == array.shape, (output, call)
            np.testing.assert_array_equal(got[output], array)


def test_what_does_not_fit_stops_it(tmp_path: Path) -> None:
    ours, _ = _sessions(tmp_path, "shapes")
    for shape in (_ints(5, 3, 2), _ints(-4, -3, 2), _ints(-1, 5, 1)):
        with pytest.raises(
            ArtifactError, match=r"computed from the inputs' values does not fit: -?\d+ where 0 must be"
        ):
            ours(x=X, s=shape)


@pytest.mark.parametrize("two", [(0, 0), (0, 3), (1, -1)])
def test_axes_that_are_none_or_twice_the_same_stop_it(two: tuple[int, int], tmp_path: Path) -> None:
    nodes = [node("ReduceMax", ["x", "two"], ["y"], keepdims=0)]
    proto = model(nodes, [value("x", [2, 3]), value("two", [2], INT64)], [value("y", [])], opset=18)
    session = compiled(tmp_path, proto)
    with pytest.raises(ArtifactError):
        session(x=X[:2, :3], two=_ints(*two))


def test_a_list_of_unknown_length_is_refused_by_name(tmp_path: Path) -> None:
    proto = model([node("Reshape", ["x", "s"], ["y"])], [IMAGE, value("s", ["n"], INT64)],
                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])  # fmt: skip
    with pytest.raises(UnsupportedModel, match="whose length is not known"):
        compiled(tmp_path, proto)


def test_an_input_of_no_elements_is_known(tmp_path: Path) -> None:
    """Axes that are none, rows that are none: ONNX Runtime takes both."""
    nodes = [
        node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
        node("Concat", ["x", "none"], ["same"], axis=0),
        node("MatMul", ["none", "w"], ["rows"]),
        node("ReduceMax", ["rows", "last"], ["most"], keepdims=0),
    ]
    inputs = [IMAGE, value("axes", [0], INT64), value("none", [0, 6])]
    outs = [value("total", []), value("same", ["a", 6]), value("rows", [0, 3]), value("most", [0])]
    weights = {"w": np.ones((6, 3), "float32"), "last": _ints(1)}
    ours = compiled(tmp_path, model(nodes, inputs, outs, opset=18, **weights))
    got = ours(x=X, axes=_ints(), none=np.zeros((0, 6), "float32"))
    np.testing.assert_allclose(got["total"], X.sum(), rtol=1e-5)
    np.testing.assert_array_equal(got["same"], X)
    assert got["rows"].shape == (0, 3)
    assert got["most"].shape == (0,)


def test_a_batch_norm_keeps_sizes_that_the_data_decides(tmp_path: Path) -> None:
    """For all that TVM knows the channels may differ from the statistics': its result had other names for them."""
    nodes = [
        node("ReduceMax", ["x", "axes"], ["most"], keepdims=1),
        node("Add", ["x", "most"], ["sum"]),
        node("BatchNormalization", ["sum", "one", "one", "one", "one"], ["normal"]),
        node("GlobalMaxPool", ["normal"], ["pooled"]),
        node("Add", ["normal", "x"], ["y"]),
    ]
    proto = model(
        nodes,
        [value("x", [2, 1, 2, 1]), value("axes", [1], INT64)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "pooled")],
        opset=18,
        one=np.ones(1, "float32"),
    )
    call = {"x": np.arange(4, dtype="float32").reshape(2, 1, 2, 1), "axes": np.array([3])}
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(["y", "pooled"], call)
    got = compiled(tmp_path, proto)(**call)
    for name, each in zip(("y", "pooled"), want, strict=True):
        np.testing.assert_allclose(got[name], each, rtol=1e-5, atol=1e-6)
