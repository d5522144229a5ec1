"""What is evaluated while importing is what ONNX Runtime computes: every such operator, of numbers and of sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from relaxc.service.frontend import load
from relaxc.service.frontend.onnx.fold import FOLDS
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import INT64, check, model, node, value, write

Case = tuple[str, list[Any], dict[str, Any]]
"""An operator, its inputs, which are arrays or names, and its attributes."""

_FLOATS = np.array([1.5, -2.25, 0.5, 9.0, -0.75, 4.0], "float32")
_WIDE = np.array([2**53 + 1, -(2**62) - 1, 7, -(2**63), 2**63 - 1, -3], "int64")
_BOOLS = np.array([True, False, True, True, False, False])


def _i(*values: int) -> Any:
    return np.array(values, "int64")


def _numbers() -> list[Case]:
    matrix, last = _WIDE.reshape(2, 3), _i(2**62 + 1)
    cases: list[Case] = [("Flatten", [_WIDE], {"axis": axis}) for axis in (1, 0, -1)]
    cases += [("Flatten", [_WIDE.reshape(1, 2, 3)], {"axis": axis}) for axis in (0, 1, 2, 3, -2)]
    cases += [("Flatten", [_WIDE], {}), ("Flatten", [np.int64(5)], {"axis": 0})]
    spans = [(-1, -7, -1), (-100, -200, -1), (100, -200, -2), (1, 5, 2), (-4, 100, 1), (3, 1, 1), (4, -100, -3)]
    cases += [("Slice", [_WIDE, _i(start), _i(end), _i(0), _i(step)], {}) for start, end, step in spans]
    cases += [("Range", [np.int64(a), np.int64(b), np.int64(by)], {}) for a, b, by in (
        (2**53 + 1, 2**53 + 6, 2), (5, -4, -3), (3, 3, 1),
    )]  # fmt: skip
    cases += [("Range", [np.float32(0.5), np.float32(3.25), np.float32(0.75)], {})]
    cases += [(op, [_WIDE, last], {}) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max")]
    cases += [(op, [_WIDE, last], {}) for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")]
    cases += [("Equal", [_BOOLS, _BOOLS[::-1].copy()], {}), ("Div", [_i(-7, 7, 5), _i(2, -2, 5)], {})]
    cases += [("Mod", [_i(-7, 7, 5), _i(2, -2, 5)], {}), ("Max", [_WIDE], {}), ("Min", [_FLOATS], {})]
    cases += [(op, [_BOOLS, _BOOLS[::-1].copy()], {}) for op in ("And", "Or", "Xor")]
    cases += [("Not", [_BOOLS], {}), ("Neg", [_WIDE], {}), ("Abs", [_WIDE], {})]
    cases += [(op, [_FLOATS], {}) for op in ("Floor", "Ceil", "Abs", "Neg")] + [("Sqrt", [np.abs(_FLOATS)], {})]
    cases += [("Cast", [_FLOATS * 20], {"to": to}) for to in (1, 3, 5, 6, 7, 9, 10, 11)]
    cases += [("Cast", [np.abs(_FLOATS)], {"to": to}) for to in (2, 4, 12, 13)]
    cases += [("Cast", [_WIDE], {"to": to}) for to in (2, 3, 6, 12, 11)]
    cases += [("Where", [_BOOLS, _WIDE, last], {}), ("Where", [_BOOLS, last, _WIDE], {})]
    cases += [("Squeeze", [_WIDE.reshape(1, 6, 1)], {}), ("Squeeze", [_WIDE.reshape(1, 6, 1), _i(-1)], {})]
    cases += [("Unsqueeze", [matrix, _i(0, -1)], {}), ("Unsqueeze", [matrix, _i(-2)], {})]
    cases += [("Reshape", [matrix, _i(0, -1, 1)], {}), ("Transpose", [matrix], {}), ("Identity", [matrix], {})]
    cases += [("Transpose", [_WIDE.reshape(1, 2, 3)], {"perm": [2, 0, 1]}), ("Expand", [matrix, _i(2, 1, 1)], {})]
    cases += [("Concat", [matrix, matrix], {"axis": axis}) for axis in (0, -1)]
    cases += [("Gather", [matrix, _i(-1, 0)], {"axis": axis}) for axis in (0, 1)]
    cases += [("Gather", [matrix, np.int64(-2)], {}), ("ConstantOfShape", [_i(2, 2)], {})]
    cases += [("ConstantOfShape", [_i(3)], {"value": helper.make_tensor("v", INT64, [1], [2**53 + 1])})]
    cases += [("Split", [_WIDE, _i(1, 2, 3)], {}), ("Split", [np.append(_WIDE, 1)], {"num_outputs": 4})]
    few = _i(3, -1, 7, 2, -5, 4).reshape(2, 3)  # ONNX Runtime's sums are of doubles
    cases += [(op, [few, _i(-1)], {"keepdims": keep}) for op in ("ReduceSum", "ReduceProd") for keep in (0, 1)]
    cases += [(op, [few], {}) for op in ("ReduceMax", "ReduceMin", "ReduceSum")]
    return cases


def _sizes() -> list[Case]:
    """`n` is a size as a vector of one, `m` is `n - 4`, which is negative of some sizes, and `nn` has `n` and 7."""
    cases: list[Case] = [(op, [x], {}) for op in ("Neg", "Abs") for x in ("n", "m")]
    cases += [(op, ["n", _i(3)], {}) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")]
    cases += [(op, ["m", _i(3)], {}) for op in ("Add", "Sub", "Mul", "Min", "Max")]
    cases += [("Min", ["m"], {}), ("Max", ["n", "m", _i(1)], {}), ("Reshape", ["nn", _i(2, 1)], {})]
    cases += [("Concat", ["n", "nn"], {"axis": 0}), ("Gather", ["nn", _i(1, -2)], {}), ("Flatten", ["nn"], {})]
    cases += [("Unsqueeze", ["n", _i(0)], {}), ("Slice", ["nn", _i(-1), _i(-3), _i(0), _i(-1)], {})]
    cases += [("Equal", ["n", _i(0)], {}), ("Less", ["n", _i(1)], {}), ("Greater", ["n", _i(0)], {})]
    cases += [("Where", [np.array([True]), "n", _i(3)], {}), ("Where", [np.array([False, True]), "n", _i(3)], {})]
    cases += [("ReduceProd", ["nn"], {}), ("ReduceSum", ["nn"], {"keepdims": 0}), ("Expand", ["n", _i(2, 1)], {})]
    return cases


def _written(folder: Path, cases: list[Case], *, sizes: bool) -> Path:
    nodes, outputs, weights = [], [], {}
    if sizes:
        nodes = [
            node("Shape", ["x"], ["n"], start=0, end=1), node("Sub", ["n", "four"], ["m"]),
            node("Concat", ["n", "seven"], ["nn"], axis=0),
            node("Cast", ["n"], ["floats"], to=1), node("Sqrt", ["floats"], ["root"]), node("Floor", ["floats"], ["f"]),
            node("Neg", ["floats"], ["minus"]), node("Where", ["yes", "floats", "half"], ["either"]),
        ]  # fmt: skip
        weights = {"four": _i(4), "seven": _i(7), "yes": np.array([True, False]), "half": np.float32(0.5)}
        outputs = ["root", "f", "minus", "either"]
    for place, (op, operands, attributes) in enumerate(cases):
        names = [each if isinstance(each, str) else f"w{place}_{at}" for at, each in enumerate(operands)]
        weights |= {name: each for name, each in zip(names, operands, strict=True) if not isinstance(each, str)}
        parts = len(operands[1]) if op == "Split" and len(operands) > 1 else attributes.get("num_outputs", 1)
        made = [f"y{place}_{part}" for part in range(parts)]
        nodes.append(node(op, names, made, **attributes))
        outputs += made
    infos = [helper.ValueInfoProto(name=name) for name in outputs]
    return write(folder, model(nodes, [value("x", ["n", 2])], infos, **weights))


def test_numbers_are_what_onnx_runtime_computes(tmp_path: Path) -> None:
    assert {op for op, *_ in _numbers()} == set(FOLDS)
    check(_written(tmp_path, _numbers(), sizes=False))


def test_sizes_are_what_onnx_runtime_computes(tmp_path: Path) -> None:
    path = _written(tmp_path, _sizes(), sizes=True)
    for size in (1, 3, 4, 6):
        check(path, sizes={"n": size})


def test_the_last_rows_as_many_as_there_are_are_all(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1), node("Neg", ["n"], ["m"]),
        node("Slice", ["x", "m", "end", "axes"], ["y"]),
    ]  # fmt: skip
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = model(nodes, [value("x", ["n", 2])], [out], end=_i(2**63 - 1), axes=_i(0))
    (output,) = load(write(tmp_path, proto), ModelFormat.ONNX, shapes={}).signature.outputs
    assert output.shape == ("n", 2)
    check(write(tmp_path, proto))
