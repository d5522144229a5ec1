"""Sizes that a model cannot have, on symbolic axes: every call with them is refused before a kernel reads anything."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import relaxc
from relaxc.service import compiler
from relaxc.service.errors import ArtifactError, InputShape, InvalidShape, ModelMalformed, UnsupportedModel
from relaxc.service.frontend import load
from relaxc.service.request import CompileOptions, ModelFormat
from relaxc.service.runtime.dims import bind
from relaxc.service.signature import Signature
from tests.frontend.onnx.harness import FLOAT, INT64, check, model, node, value, write

INT8, INT32, BOOL = TensorProto.INT8, TensorProto.INT32, TensorProto.BOOL
_TRIED = {1: range(1, 10), 2: range(1, 6), 3: range(1, 4), 4: range(1, 4)}


def _f(*shape: int) -> Any:
    return np.abs(np.random.default_rng(0).standard_normal(shape)).astype("float32")


def _i(*values: int, shape: Sequence[int] | None = None) -> Any:
    return np.array(values, "int64").reshape(len(values) if shape is None else tuple(shape))


def _one(
    op: str, shape: Sequence[int | str], *others: Any, outs: int = 1, opset: int = 20, dtype: int = FLOAT, **kw: Any
) -> Any:
    """A model of one node on `x`; others are weights, None, or inputs `(name, shape, dtype)`."""
    inputs, names, weights = [value("x", shape, dtype)], ["x"], {}
    for place, other in enumerate(others):
        if isinstance(other, tuple):
            inputs.append(value(*other))
        elif other is not None:
            weights[f"w{place}"] = other
        names.append("" if other is None else other[0] if isinstance(other, tuple) else f"w{place}")
    outputs = [f"y{place}" for place in range(outs)]
    kinds = kw.pop("gives", [dtype] * outs)
    infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, kinds, strict=True)]
    return model([node(op, names, outputs, **kw)], inputs, infos, opset=opset, **weights)


def _by_shape(op: str, arithmetic: str, number: int, last: int, target: str, **weights: Any) -> Any:
    """A model that computes a shape `[arithmetic(n, number), last]` and hands it to `op` with `target`."""
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node(arithmetic, ["s", "number"], ["h"]),
        node("Concat", ["h", "last"], ["shape"], axis=0),
        node(op, [target, "shape"], ["y"]),
    ]
    out = helper.make_tensor_value_info("y", FLOAT, None)
    return model(nodes, [value("x", ["n", 4])], [out], number=_i(number), last=_i(last), **weights)


def _by_positions(shift: int | None = None, *, of: str = "ids", dtype: int | None = None, **more: Any) -> Any:
    """A table of 5 rows read at 0, 1, … up to the length of `x`, as GPT-2's positions are; `more` nodes make others,
    of a number, or of themselves twice."""
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1), node("Squeeze", ["s"], ["n"]),
        node("Range", ["zero", "n", "one"], ["r"]), node("Unsqueeze", ["r", "axes"], ["rows"]),
    ]  # fmt: skip
    weights = {"zero": np.int64(0), "one": np.int64(1), "axes": _i(0), "table": _f(5, 2)}
    if shift is not None:
        nodes.append(node("Add", ["rows", "shift"], ["moved"]))
        weights["shift"] = np.int64(shift)
    last = "rows" if shift is None else "moved"
    if dtype is not None:
        nodes.append(node("Cast", [last], ["cast"], to=dtype))
        last = "cast"
    for op, number in more.items():
        weights |= {} if number is None else {f"{op}_number": number}
        attributes = {"Concat": {"axis": 1}}.get(op.rstrip("_"), {})
        second = last if number is None else f"{op}_number"
        nodes.append(node(op.rstrip("_"), [last, second], [f"{op}_made"], **attributes))
        last = f"{op}_made"
    if last.endswith("_made") and dtype == FLOAT:
        nodes.append(node("Cast", [last], ["whole"], to=INT64))
        last = "whole"
    at = {"ids": last, "size": "n"}[of]
    out = helper.make_tensor_value_info("y", FLOAT, None)
    return model([*nodes, node("Gather", ["table", at], ["y"])], [value("x", ["n", 2])], [out], **weights)


def _halves_beside_the_whole(op: str) -> Any:
    """A map beside what is made of its halves, as in a network that goes down and up again."""
    nodes = [
        node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["half", "", "scales"], ["again"], mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
        node(op, ["x", "again"], ["y"], **({"axis": 1} if op == "Concat" else {})),
    ]  # fmt: skip
    out = helper.make_tensor_value_info("y", FLOAT, None)
    return model(nodes, [value("x", [1, 2, "h", "w"])], [out], scales=np.array([1, 1, 2, 2], "float32"))


def _from_the_last(rows: int) -> Any:
    """The last rows, counted from the start."""
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1), node("Sub", ["n", "rows"], ["start"]),
        node("Slice", ["x", "start", "end", "axes"], ["y"]),
    ]  # fmt: skip
    out = helper.make_tensor_value_info("y", FLOAT, None)
    return model(nodes, [value("x", ["n", 4])], [out], rows=_i(rows), end=_i(2**63 - 1), axes=_i(0))


CASES: dict[str, Any] = {
    "concat of halves": _halves_beside_the_whole("Concat"),
    "split into equal parts": _one("Split", ["n", 4], outs=2, axis=0, opset=13),
    "split into a number": _one("Split", ["n", 4], outs=3, axis=0, num_outputs=3),
    "reflect": _one("Pad", ["n", 4], _i(2, 0, 1, 0), mode="reflect"),
    "positions": _by_positions(),
    "positions from 2": _by_positions(2),
    "positions from the end": _by_positions(-3),
    "32-bit positions": _by_positions(dtype=INT32),
    "a size as a place": _by_positions(of="size"),
    "positions beside a constant": _by_positions(Concat=_i(3, 1, shape=(1, 2))),
    "positions beside nothing": _by_positions(Concat=_i(shape=(1, 0))),
    "positions up to 7": _by_positions(Min=np.int64(7)),
    "positions from 2 up to 8": _by_positions(2, Max=np.int64(3), Min=np.int64(8)),
    "halves of positions": _by_positions(2, Div=np.int64(2)),
    "positions in floats": _by_positions(dtype=FLOAT, Add=np.float32(1), Mul=np.float32(2)),
    "halves of positions in floats": _by_positions(2, dtype=FLOAT, Div=np.float32(2)),
    "halves of positions by a product": _by_positions(2, dtype=FLOAT, Mul=np.float32(0.5)),
    "positions twice": _by_positions(-1, Add=None),
    "positions up to 7.5": _by_positions(dtype=FLOAT, Max=np.float32(0.5), Min=np.float32(7.5)),
    "split": _one("Split", ["n", 4], _i(2, 3), outs=2, axis=0),
    "split by attribute": _one("Split", ["n", 4], outs=2, axis=0, split=[2, 3], opset=11),
    "split to one": _one("Split", ["n", 4], _i(3), axis=0),
    "topk": _one("TopK", ["n", 4], _i(3), outs=2, axis=0, gives=[FLOAT, INT64]),
    "conv channels": _one("Conv", [1, "c", 8, 8], _f(4, 3, 3, 3)),
    "conv groups": _one("Conv", [1, "c", 8, 8], _f(4, 2, 3, 3), group=2),
    "conv height": _one("Conv", [1, 3, "h", 8], _f(4, 3, 3, 3)),
    "conv width": _one("Conv", [1, 3, "w"], _f(4, 3, 5)),
    "conv strides": _one("Conv", [1, 3, "h", "w"], _f(4, 3, 4, 4), strides=[2, 2]),
    "conv bias": _one("Conv", [1, 3, 8, 8], _f(4, 3, 3, 3), ("b", ["o"], FLOAT)),
    "transposed channels": _one("ConvTranspose", [1, "c", 4, 4], _f(3, 4, 3, 3)),
    "transposed height": _one("ConvTranspose", [1, 3, "h", 4], _f(3, 4, 3, 3), pads=[2, 2, 2, 2]),
    "reshape by eight": _one("Reshape", ["n", 4], _i(-1, 8)),
    "reshape to numbers": _one("Reshape", ["n", 4], _i(2, 4)),
    "reshape keeping one": _one("Reshape", ["n", "m"], _i(0, 2, -1)),
    "reshape to a half": _by_shape("Reshape", "Div", 2, 8, "x"),
    "expand to fewer": _by_shape("Expand", "Sub", 2, 4, "row", row=_f(1, 4)),
    "depth to space": _one("DepthToSpace", [1, "c", 2, 2], blocksize=2),
    "depth to space by columns": _one("DepthToSpace", [1, "c", 2, 2], blocksize=2, mode="CRD"),
    "space to depth": _one("SpaceToDepth", [1, 2, "h", "w"], blocksize=2),
    "gather": _one("Gather", ["n", 4], _i(0, 3), axis=0),
    "gather from the end": _one("Gather", ["n", 4], _i(-3), axis=0),
    "gather elements": _one("GatherElements", ["n", 2], _i(0, 3, shape=(1, 2)), axis=0),
    "gather elements of fewer": _one("GatherElements", ["n", "k"], ("i", ["m", "j"], INT64), axis=0),
    "gather nd": _one("GatherND", ["n", 4], _i(3, shape=(1, 1))),
    "scatter elements": _one("ScatterElements", ["n", 2], _i(0, 3, shape=(1, 2)), _f(1, 2), axis=0),
    "scatter nd": _one("ScatterND", ["n", 4], _i(3, shape=(1, 1)), _f(1, 4)),
    "scatter nd rows": _one("ScatterND", ["n", "m"], _i(1, shape=(1, 1)), _f(1, 4)),
    "concat": _one("Concat", ["n", "m"], ("b", ["p", "q"], FLOAT), axis=0),
    "concat with a weight": _one("Concat", ["n", "m"], _f(2, 3), axis=0),
    "matmul": _one("MatMul", ["n", "k"], ("b", ["m", "p"], FLOAT)),
    "matmul by a weight": _one("MatMul", ["n", "k"], _f(3, 5)),
    "gemm": _one("Gemm", ["n", "k"], _f(3, 5), _f(5)),
    "integer matmul": _one("MatMulInteger", ["n", "k"], np.ones((3, 4), "int8"), dtype=INT8, gives=[INT32]),
    "pad by less": _one("Pad", ["n", 4], _i(-2, 0, -1, 0)),
    "squeeze": _one("Squeeze", ["n", 4], _i(0)),
    "layer norm": _one("LayerNormalization", [2, "n"], _f(4), _f(4)),
    "batch norm": _one("BatchNormalization", [1, "c", 2], _f(3), _f(3), _f(3), _f(3)),
    "instance norm": _one("InstanceNormalization", [1, "c", 4], _f(3), _f(3)),
    "lstm": _one("LSTM", ["s", "b", "i"], _f(1, 16, 3), _f(1, 16, 4), hidden_size=4),
    "lstm state": _one(
        "LSTM", ["s", "b", 3], _f(1, 16, 3), _f(1, 16, 4), None, None, ("h", [1, "c", 4], FLOAT), hidden_size=4
    ),
    "diagonal": _one("Einsum", ["n", "k"], equation="ii->i"),
    "grid": _one("GridSample", ["n", 2, 4, 4], ("g", ["m", 3, 3, 2], FLOAT)),
    "regions": _one("RoiAlign", [1, 2, "h", 4], _f(2, 4), ("b", ["m"], INT64), output_height=2, output_width=2),
    "lengths": _one("ReverseSequence", [4, "b"], _i(2, 3)),
    "longest": _one("ReverseSequence", ["t", 2], _i(2, 3)),
    "scales": _one("DequantizeLinear", ["n", 3], _f(4), np.zeros(4, "int8"), axis=0, dtype=INT8, gives=[FLOAT]),
    "steps": _one("QuantizeLinear", ["n", 3], _f(4), np.zeros(4, "int8"), axis=0, gives=[INT8]),
}
STRICTER: dict[str, Any] = {
    "sum of halves": _halves_beside_the_whole("Add"),
    "slice from the last rows": _from_the_last(3),
    "add": _one("Add", ["n", 4], ("b", ["m", 4], FLOAT)),
    "add a weight": _one("Add", ["n", 4], _f(3, 4)),
    "where": _one("Where", ["n", 4], ("a", ["m", 4], FLOAT), ("b", ["p", 4], FLOAT), dtype=BOOL, gives=[FLOAT]),
    "greatest": _one("Max", ["n", 4], ("a", ["m", 4], FLOAT), _f(5, 4)),
    "batched matmul": _one("MatMul", ["b", "n", 4], ("b", ["c", 4, 5], FLOAT)),
    "expand": _one("Expand", ["n", 4], _i(3, 4)),
    "max pool": _one("MaxPool", [1, 2, "h", 5], kernel_shape=[3, 3]),
    "average of three": _one("AveragePool", [1, 2, "h", 5], kernel_shape=[3, 3]),
    "lp pool": _one("LpPool", [1, 2, "h", 5], kernel_shape=[3, 3], strides=[3, 1]),
    "average pool": _one("AveragePool", [1, 2, "h", 9], kernel_shape=[3, 3], dilations=[2, 2], strides=[3, 1]),
}
"""Where ONNX Runtime takes more than we do: a size of 1 is repeated where the name says nothing of it, and of a window
that is longer than its padded image it gives no elements, or one, as it divides towards zero.
"""


def _given(session: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    rng, found = np.random.default_rng(1), {}
    for spec in session.get_inputs():
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
        dtype = helper.tensor_dtype_to_np_dtype(
            {"tensor(float)": FLOAT, "tensor(int64)": INT64, "tensor(bool)": BOOL, "tensor(int8)": INT8}[spec.type]
        )
        found[spec.name] = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.zeros(shape, dtype)
    return found


def _runs(session: Any, given: Mapping[str, Any]) -> bool:
    try:
        session.run(None, given)
    except Exception:  # noqa: BLE001  # its errors share no class of their own
        return False
    return True


def _takes(signature: Signature, given: Mapping[str, Any]) -> bool:
    try:
        bind(signature, [given[spec.name].shape for spec in signature.inputs])
    except InputShape:
        return False
    return True


@pytest.mark.parametrize("name", [*CASES, *STRICTER])
def test_a_call_is_refused_where_onnx_runtime_refuses_it(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, (CASES | STRICTER)[name])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    signature = load(path, ModelFormat.ONNX, shapes={}).signature
    names = sorted({dim for spec in session.get_inputs() for dim in spec.shape if isinstance(dim, str)})
    answers = set()
    for chosen in itertools.product(_TRIED[len(names)], repeat=len(names)):
        sizes = dict(zip(names, chosen, strict=True))
        given = _given(session, sizes)
        ours, theirs = _takes(signature, given), _runs(session, given)
        assert ours == theirs or (theirs and name in STRICTER), f"{sizes}: {ours}, ONNX Runtime {theirs}"
        answers.add(ours)
    assert answers == {True, False}


def _compiled(folder: Path, proto: Any) -> relaxc.Session:
    request = compiler.prepare(write(folder, proto), options=CompileOptions(verify=False))
    compiler.run(request, folder, lambda event: None)
    return relaxc.load(next(folder.glob("*.so")))


def test_the_call_of_an_artifact_ends_with_the_operator_and_the_sizes(tmp_path: Path) -> None:
    session = _compiled(tmp_path, CASES["reshape by eight"])
    x = np.arange(24, dtype="float32").reshape(6, 4)
    np.testing.assert_array_equal(session(x=x)["y0"], x.reshape(3, 8))
    said = r"node 'Reshape_y0' \(Reshape\) reshapes \[n, 4\] to \[n // 2, 8\]: n % 2 == 0 must hold, and n is 5"
    for call in (lambda: session(x=x[:5]), lambda: session.bind({"x": x[:5]})):
        with pytest.raises(InputShape, match=said):
            call()


def test_positions_that_go_down_are_told_in_short(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1), node("Squeeze", ["s"], ["n"]),
        node("Add", ["n", "minus"], ["last"]), node("Range", ["last", "minus", "minus"], ["r"]),
        node("Gather", ["table", "r"], ["y"]),
    ]  # fmt: skip
    out = helper.make_tensor_value_info("y", FLOAT, None)
    path = write(tmp_path, model(nodes, [value("x", ["n", 2])], [out], minus=np.int64(-1), table=_f(5, 2)))
    (condition,) = load(path, ModelFormat.ONNX, shapes={}).signature.conditions
    assert condition.text == "5 >= n"
    assert condition.why.endswith("has indices of 0 to n - 1 for an axis of 5")


def test_a_size_that_the_data_decides_is_checked_as_the_program_runs(tmp_path: Path) -> None:
    nodes = [node("NonZero", ["x"], ["places"]), node("Reshape", ["places", "shape"], ["y"])]
    out = helper.make_tensor_value_info("y", INT64, None)
    session = _compiled(tmp_path, model(nodes, [value("x", ["n", 4])], [out], shape=_i(3, -1)))
    x = np.zeros((3, 4), "float32")
    x[0, 1] = x[1, 2] = x[2, 0] = 1
    np.testing.assert_array_equal(session(x=x)["y"], np.reshape(np.nonzero(x), (3, 2)))
    x[2, 2] = 1
    with pytest.raises(ArtifactError, match="does not fit: 2 where 0 must be"):
        session(x=x)


@pytest.mark.parametrize(("name", "shape"), [("topk", (2, 4)), ("reshape by eight", (3, 4)), ("split", (2, 4))])
def test_a_shape_of_the_user_that_no_call_can_have_is_refused(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(ModelMalformed, match=CASES[name].graph.node[0].op_type):
        load(write(tmp_path, CASES[name]), ModelFormat.ONNX, shapes={"x": shape})


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_a_scatter_along_a_symbolic_axis(op: str, tmp_path: Path) -> None:
    session = _compiled(tmp_path, CASES["scatter elements" if op == "ScatterElements" else "scatter nd"])
    x = np.zeros((5, 2 if op == "ScatterElements" else 4), "float32")
    want = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})
    np.testing.assert_array_equal(session(x=x)["y0"], want[0])


def test_a_window_that_is_longer_than_its_image_has_a_place_by_ceil_mode(tmp_path: Path) -> None:
    """EfficientNets pool so, by windows as long as they have channels."""
    path = write(tmp_path, _one("AveragePool", [1, 2, 3, 3], kernel_shape=[8, 8], strides=[8, 8], ceil_mode=1))
    assert load(path, ModelFormat.ONNX, shapes={}).signature.outputs[0].shape == (1, 2, 1, 1)


def _branch(nodes: Sequence[Any], name: str, dtype: int = FLOAT, **constants: Any) -> Any:
    tensors = [numpy_helper.from_array(array, label) for label, array in constants.items()]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, dtype, None)], tensors)


def test_a_branch_that_is_left_holds_no_call_to_its_sizes(tmp_path: Path) -> None:
    """Both branches are computed; of the one that is left an index reads the nearest element, and a reshape fewer."""
    fourth = _branch([node("Gather", ["x", "at"], ["then"], axis=0)], "then", at=_i(3))
    first = _branch([node("Gather", ["x", "at"], ["other"], axis=0)], "other", at=_i(0))
    chosen = node("If", ["flag"], ["y"], then_branch=fourth, else_branch=first)
    inputs = [value("x", ["n", 2]), value("flag", [], BOOL)]
    session = _compiled(tmp_path, model([chosen], inputs, [helper.make_tensor_value_info("y", FLOAT, None)]))
    for n in (1, 2, 4, 5):
        x = _f(n, 2)
        want = x[3:4] if n > 3 else x[:1]
        np.testing.assert_array_equal(session(x=x, flag=np.array(n > 3))["y"], want)


def test_halves_of_an_even_size_are_taken_by_a_branch(tmp_path: Path) -> None:
    sums = {"axes": _i(0, 1)}
    half = [node("Reshape", ["x", "shape"], ["pairs"]), node("ReduceSum", ["pairs", "axes"], ["then"], keepdims=0)]
    whole = [node("ReduceSum", ["x", "axes"], ["other"], keepdims=0)]
    nodes = [
        node("Shape", ["x"], ["sizes"], start=0, end=1), node("Squeeze", ["sizes"], ["n"]),
        node("Mod", ["n", "two"], ["rest"]), node("Equal", ["rest", "zero"], ["even"]),
        node("If", ["even"], ["y"], then_branch=_branch(half, "then", shape=_i(-1, 2), **sums),
             else_branch=_branch(whole, "other", **sums)),
    ]  # fmt: skip
    out = helper.make_tensor_value_info("y", FLOAT, None)
    proto = model(nodes, [value("x", ["n", 3])], [out], two=np.int64(2), zero=np.int64(0))
    session = _compiled(tmp_path, proto)
    for n in range(1, 6):
        np.testing.assert_allclose(session(x=_f(n, 3))["y"], _f(n, 3).sum(), rtol=1e-5)


@pytest.mark.parametrize("name", ["lambda", "in", "None", "max", "Min"])
def test_a_dim_named_like_a_word_of_python_is_another_name(name: str, tmp_path: Path) -> None:
    both = _one("Concat", [name, 2], ("b", [f"{name}_", 2], FLOAT), axis=0)
    signature = load(write(tmp_path, both), ModelFormat.ONNX, shapes={}).signature
    assert [spec.shape for spec in signature.inputs] == [(f"{name}__", 2), (f"{name}_", 2)]
    assert bind(signature, [(3, 2), (4, 2)]) == {f"{name}__": 3, f"{name}_": 4}
    with pytest.raises(InvalidShape, match="neither a size nor a name"):
        load(write(tmp_path, both), ModelFormat.ONNX, shapes={"x": (name, 2)})


def test_a_size_computed_from_a_dim_named_max(tmp_path: Path) -> None:
    given = _one("Concat", ["max", 2], ("b", ["max * 2", 2], FLOAT), axis=0)
    signature = load(write(tmp_path, given), ModelFormat.ONNX, shapes={}).signature
    assert [spec.shape[0] for spec in signature.inputs] == ["max_", "max_ * 2"]


def test_space_to_depth_of_a_size_without_text(tmp_path: Path) -> None:
    """The quotient by a negative number has none: it is rounded to 0."""
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Div", ["n", "minus"], ["less"]),
        node("Mul", ["less", "minus"], ["h"]),
        node("Concat", ["one", "h", "four"], ["shape"], axis=0),
        node("Expand", ["v", "shape"], ["wide"]),
        node("SpaceToDepth", ["wide"], ["y"], blocksize=2),
    ]
    weights = {"minus": _i(-3), "four": _i(4), "one": _i(1, 1), "v": _f(1, 1, 1, 1)}
    out = helper.make_tensor_value_info("y", FLOAT, None)
    path = write(tmp_path, model(nodes, [value("x", ["n", 4])], [out], **weights))
    with pytest.raises(UnsupportedModel, match="SpaceToDepth"):
        load(path, ModelFormat.ONNX, shapes={})


def test_squeeze_without_axes_refuses_calls_in_which_another_axis_would_go(tmp_path: Path) -> None:
    session = _compiled(tmp_path, _one("Squeeze", ["n", 1, 4]))
    assert session(x=_f(3, 1, 4))["y0"].shape == (3, 4)
    said = r"\(Squeeze\) without axes leaves axis 0 out where its size n is 1: n - 1 != 0 must hold, and n is 1"
    with pytest.raises(InputShape, match=said):
        session(x=_f(1, 1, 4))


@pytest.mark.parametrize("sizes", [{"h": 4, "w": 2}, {"h": 2, "w": 6}])
@pytest.mark.parametrize("op", ["Concat", "Add"])
def test_sizes_that_are_equal_in_some_calls_are_joined_in_those(
    op: str, sizes: Mapping[str, int], tmp_path: Path
) -> None:
    imported = check(write(tmp_path, _halves_beside_the_whole(op)), sizes=sizes)
    assert len(imported.signature.conditions) >= 2


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_by_a_symbolic_axis_s_own_elements(mode: str, tmp_path: Path) -> None:
    check(write(tmp_path, _one("Pad", [2, "n"], _i(0, 3, 0, 2), mode=mode)), sizes={"n": 4})
    check(write(tmp_path, _one("Pad", ["n", 3], _i(1, -1, 2, 0), mode=mode)), sizes={"n": 3})


def test_parts_of_a_symbolic_axis(tmp_path: Path) -> None:
    check(write(tmp_path, _one("Split", ["n", 4], outs=3, axis=0, num_outputs=3)), sizes={"n": 7})
    check(write(tmp_path, _one("Split", ["n", 4], outs=2, axis=0, opset=13)), sizes={"n": 6})


def test_a_slice_to_a_number_beyond_every_size_is_the_whole(tmp_path: Path) -> None:
    nodes = [node("Slice", ["x", "start", "end", "axes"], ["s"]), node("Sub", ["s", "x"], ["y"])]
    numbers = {"start": _i(0), "end": _i(1_000_000_000), "axes": _i(0)}
    check(write(tmp_path, model(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], **numbers)))


def test_a_call_in_which_joined_sizes_differ_ends_with_the_operator_and_the_sizes(tmp_path: Path) -> None:
    session = _compiled(tmp_path, _halves_beside_the_whole("Concat"))
    assert session(x=_f(1, 2, 4, 6))["y"].shape == (1, 4, 4, 6)
    with pytest.raises(InputShape, match=r"\(Concat\) joins .* and h is 5"):
        session(x=_f(1, 2, 5, 6))


def test_a_size_that_nobody_named_is_its_own(tmp_path: Path) -> None:
    """PaddlePaddle writes -1, or `?` for each size that it does not know."""
    proto = model([node("Relu", ["x"], ["y"])], [value("x", [-1, 3, "?", "?"])], [value("y", [-1, 3, "?", "?"])])
    signature = check(write(tmp_path, proto), sizes={"x_0": 2, "x_2": 3, "x_3": 5}).signature
    assert signature.inputs[0].shape == ("x_0", 3, "x_2", "x_3")


@pytest.mark.parametrize("end", [10**9, 2**31 - 1])
def test_an_end_of_nine_zeros_is_the_axis_own(end: int, tmp_path: Path) -> None:
    nodes = [
        node("Slice", ["x", "start", "end", "axes"], ["y"]),
        node("Slice", ["y", "far", "near", "axes", "back"], ["z"]),
    ]
    weights = {"start": _i(0, 1), "end": _i(end, end), "axes": _i(0, 1), "far": _i(end, -1), "near": _i(-end, -end)}
    infos = [helper.make_tensor_value_info("z", FLOAT, None)]
    signature = check(
        write(tmp_path, model(nodes, [value("x", ["n", "m"])], infos, **weights, back=_i(-1, -1)))
    ).signature
    assert signature.outputs[0].shape == ("n", "m - 1")
    with pytest.raises(InputShape, match=str(end)):
        bind(signature, [(end + 2, 3)])


def test_conditions_of_sizes_decide_what_others_leave_open(tmp_path: Path) -> None:
    """TensorFlow takes a limit for the whole axis where it is nine zeros, and asks so of each size."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=FLOAT),
        node("Max", ["f", "least"], ["m"]),
        node("Cast", ["m"], ["e"], to=INT64),
        node("Equal", ["e", "far"], ["is_far"]),
        node("And", ["is_far", "never"], ["c"]),
        node("Where", ["c", "near", "e"], ["ends"]),
        node("Slice", ["x", "zeros", "ends"], ["y"]),
        node("Not", ["is_far"], ["open"]),
    ]
    weights = {"least": np.array([1e9, -1e9], "float32"), "far": _i(10**9), "never": np.array([False, False])}
    infos = [helper.make_tensor_value_info("y", FLOAT, None), value("open", [2], BOOL)]
    proto = model(nodes, [value("x", ["n", "m"])], infos, near=_i(-(10**9)), zeros=_i(0, 0), **weights)
    assert check(write(tmp_path, proto)).signature.outputs[0].shape == ("n", "m")


@pytest.mark.parametrize(
    ("mode", "transform", "nearest"),
    [
        ("linear", "half_pixel", "floor"),
        ("linear", "align_corners", "floor"),
        ("cubic", "pytorch_half_pixel", "floor"),
        ("nearest", "asymmetric", "floor"),
        ("nearest", "half_pixel", "round_prefer_ceil"),
    ],
)
def test_resize_to_the_sizes_of_another_tensor(mode: str, transform: str, nearest: str, tmp_path: Path) -> None:
    """As feature pyramids do, and by halves."""
    attributes = {"mode": mode, "coordinate_transformation_mode": transform, "nearest_mode": nearest}
    nodes = [
        node("Shape", ["x"], ["few"], end=2),
        node("Shape", ["other"], ["sides"], start=2),
        node("Concat", ["few", "sides"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], **attributes),
        node("Resize", ["x", "", "scales"], ["z"], **(attributes | {"coordinate_transformation_mode": "half_pixel"})),
    ]
    infos = [helper.make_tensor_value_info(name, FLOAT, None) for name in "yz"]
    inputs = [value("x", ["n", 2, "h", "w"]), value("other", [1, 1, "a", "b"])]
    proto = model(nodes, inputs, infos, scales=np.array([1, 1, 0.5, 1.5], "float32"))
    signature = check(write(tmp_path, proto), sizes={"n": 2, "h": 5, "w": 7, "a": 8, "b": 3}).signature
    assert [spec.shape[2:] for spec in signature.outputs] == [("a", "b"), ("h // 2", "w * 3 // 2")]


def test_a_guess_that_leaves_no_axis_to_split_is_not_taken(tmp_path: Path) -> None:
    """Outputs of three axes, as a file may say that was made for others: each way to squeeze is looked at."""
    nodes = [node("Squeeze", ["x"], ["s"]), node("Split", ["s"], ["y", "z"], num_outputs=2, axis=0)]
    outputs = [value(name, ["k", "l", "m"]) for name in ("y", "z")]
    found = load(write(tmp_path, model(nodes, [value("x", ["a", "b"])], outputs)), ModelFormat.ONNX).signature
    assert [spec.shape for spec in found.outputs] == [("(a + 1) // 2", "b"), ("a - (a + 1) // 2", "b")]


def test_an_axis_is_left_out_where_the_outputs_are_declared_so(tmp_path: Path) -> None:
    """A file for one item whose batch has a name: its output has no axis, so a Squeeze without axes leaves all out."""
    proto = model([node("Squeeze", ["x"], ["s"]), node("Neg", ["s"], ["y"])], [value("x", ["n", 1])], [value("y", [])])
    signature = check(write(tmp_path, proto)).signature
    assert (signature.inputs[0].shape, signature.outputs[0].shape) == ((1, 1), ())
