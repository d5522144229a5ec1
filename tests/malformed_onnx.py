"""Damaged, hostile and unsupported ONNX files, each with the code of the error that it must give."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["MALFORMED_ONNX"]

Builder = Callable[[Path], Path]
FLOAT = TensorProto.FLOAT


def _value(name: str, shape: list[int | str | None] | None = None, dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, [2, 3] if shape is None else shape)


def _model(
    nodes: list[Any], *, opset: int = 18, inputs: Any = None, outputs: Any = None, weights: Any = (), **more: Any
) -> Any:
    graph = helper.make_graph(nodes, "g", inputs or [_value("x")], outputs or [_value("y")], list(weights))
    opsets = [helper.make_opsetid("", opset), *more.pop("domains", [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def _write(folder: Path, model: Any, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def _relu(source: str = "x", target: str = "y", name: str = "relu") -> Any:
    return helper.make_node("Relu", [source], [target], name=name)


def _good() -> bytes:
    weight = numpy_helper.from_array(np.ones((3, 400), "float32"), "w")
    return bytes(
        _model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], outputs=[_value("y", [2, 400])], weights=[weight]
        ).SerializeToString()
    )


def _external(folder: Path, location: str, *, offset: str = "0", length: str = "48") -> Path:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[3, 4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        weight.external_data.add(key=key, value=value)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return _write(folder, _model(nodes, outputs=[_value("y", [2, 4])], weights=[weight]))


def _symlinked(folder: Path) -> Path:
    outside = folder.parent / f"{folder.name}_secret.bin"
    outside.write_bytes(bytes(64))
    (folder / "w.bin").symlink_to(outside)
    return _external(folder, "w.bin")


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    return _external(folder, "w.bin")


def _beyond(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(64))
    return _external(folder, "w.bin", offset="32")


def _bad_offset(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(64))
    return _external(folder, "w.bin", offset="x")


def _claim(folder: Path) -> Path:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[1 << 15, 1 << 14], raw_data=bytes(16))
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    return _write(folder, _model(nodes, outputs=[_value("y", [1 << 15, 1 << 14])], weights=[weight]))


def _sequence_input(folder: Path) -> Path:
    info = helper.make_tensor_sequence_value_info("x", FLOAT, [2, 3])
    nodes = [helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)]
    return _write(folder, _model(nodes, inputs=[info], outputs=[_value("y", ["n", 3])]))


def _optional_input(folder: Path) -> Path:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 3]))
    nodes = [helper.make_node("OptionalGetElement", ["x"], ["y"])]
    return _write(folder, _model(nodes, inputs=[helper.make_value_info("x", kind)]))


def _exponential_functions(folder: Path) -> Path:
    """Thirty functions, each of which calls the one before twice: 2**30 nodes in a kilobyte."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "f0", ["a"], ["b"], [_relu("a", "b")], opsets)]
    for level in range(1, 30):
        nodes = [
            helper.make_node(f"f{level - 1}", ["a"], ["m"], domain="own"),
            helper.make_node(f"f{level - 1}", ["m"], ["b"], domain="own"),
        ]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], nodes, opsets))
    nodes = [helper.make_node("f29", ["x"], ["y"], domain="own")]
    return _write(folder, _model(nodes, functions=functions, domains=[helper.make_opsetid("own", 1)]))


def _recursive_function(folder: Path) -> Path:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    own = helper.make_function("own", "f", ["a"], ["b"], [helper.make_node("f", ["a"], ["b"], domain="own")], opsets)
    nodes = [helper.make_node("f", ["x"], ["y"], domain="own")]
    return _write(folder, _model(nodes, functions=[own], domains=[helper.make_opsetid("own", 1)]))


def _deep(folder: Path) -> Path:
    """Subgraphs 200 deep, more than protobuf parses."""
    inner = helper.make_graph([helper.make_node("Identity", ["x"], ["o"])], "g", [], [_value("o")])
    data = inner.SerializeToString()
    for _ in range(200):
        attribute = bytes([0x0A, 0x01]) + b"b" + b"\x32" + _varint(len(data)) + data
        node = b"\x22\x02If" + b"\x2a" + _varint(len(attribute)) + attribute
        data = b"\x0a" + _varint(len(node)) + node
    return _write(folder, b"\x08\x0a" + b"\x3a" + _varint(len(data)) + data)


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _huge_constant(folder: Path) -> Path:
    """Small files whose graph asks for 4 TB."""
    shape = numpy_helper.from_array(np.array([1 << 20, 1 << 20], "int64"), "s")
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["big"]), helper.make_node("Add", ["x", "big"], ["y"])]
    inputs = [_value("x", [1, 1])]
    return _write(folder, _model(nodes, inputs=inputs, outputs=[_value("y", [1 << 20, 1 << 20])], weights=[shape]))


def _model_of(*nodes: Any, **more: Any) -> Builder:
    return lambda folder: _write(folder, _model(list(nodes), **more))


_RELU = _relu()
_INT_CONV = helper.make_node("Conv", ["x", "x"], ["y"], name="c")

MALFORMED_ONNX: dict[str, tuple[Builder, str]] = {
    "empty": (lambda folder: _write(folder, b""), "unknown-format"),
    "text": (lambda folder: _write(folder, b"<html>not a model</html>"), "unknown-format"),
    "wrong magic": (lambda folder: _write(folder, b"\x7fELF" + bytes(100)), "unknown-format"),
    "random bytes": (lambda folder: _write(folder, np.random.default_rng(0).bytes(4096)), "unknown-format"),
    "truncated": (lambda folder: _write(folder, _good()[:1000]), "model-malformed"),
    "no graph": (lambda folder: _write(folder, b"\x08\x0a"), "model-malformed"),
    "subgraphs 200 deep": (_deep, "model-malformed"),
    "cycle": (_model_of(_relu("b", "a", "first"), _relu("a", "b", "second"), _relu("b")), "model-malformed"),
    "node reads itself": (_model_of(_relu("y", "y")), "model-malformed"),
    "missing initializer": (_model_of(helper.make_node("Add", ["x", "gone"], ["y"])), "model-malformed"),
    "output not computed": (_model_of(_relu("x", "z")), "model-malformed"),
    "no outputs": (
        lambda folder: _write(folder, helper.make_model(helper.make_graph([_RELU], "g", [_value("x")], []))),
        "model-malformed",
    ),
    "name defined twice": (_model_of(_relu(name="a"), _relu(name="b")), "model-malformed"),
    "node overwrites an input": (_model_of(_relu("x", "x"), _relu()), "model-malformed"),
    "opset from the future": (_model_of(_RELU, opset=999), "unsupported-model"),
    "IR from the future": (
        lambda folder: _write(
            folder, helper.make_model(helper.make_graph([_RELU], "g", [_value("x")], [_value("y")]), ir_version=99)
        ),
        "unsupported-model",
    ),
    "unknown operator": (_model_of(helper.make_node("Frobnicate", ["x"], ["y"], name="f")), "unsupported-model"),
    "unknown domain": (
        _model_of(
            helper.make_node("Relu", ["x"], ["y"], domain="com.example"),
            domains=[helper.make_opsetid("com.example", 1)],
        ),
        "unsupported-model",
    ),
    "unimported domain": (_model_of(helper.make_node("Relu", ["x"], ["y"], domain="elsewhere")), "unsupported-model"),
    "random operator": (_model_of(helper.make_node("RandomNormalLike", ["x"], ["y"])), "unsupported-model"),
    "missing attribute": (_model_of(helper.make_node("Concat", ["x", "x"], ["y"])), "model-malformed"),
    "too many inputs": (_model_of(helper.make_node("Relu", ["x", "x"], ["y"])), "model-malformed"),
    "dtype that the operator has not": (
        _model_of(
            _INT_CONV, inputs=[_value("x", [1, 1, 3, 3], TensorProto.INT32)], outputs=[_value("y", [1, 1, 1, 1])]
        ),
        "model-malformed",
    ),
    "undefined dtype": (_model_of(_RELU, inputs=[_value("x", [2, 3], 0)]), "model-malformed"),
    "string input": (
        _model_of(
            helper.make_node("Identity", ["x"], ["y"]),
            inputs=[_value("x", [2], TensorProto.STRING)],
            outputs=[_value("y", [2], TensorProto.STRING)],
        ),
        "unsupported-model",
    ),
    "shapes that do not join": (
        _model_of(helper.make_node("Add", ["x", "z"], ["y"]), inputs=[_value("x"), _value("z", [2, 4])]),
        "model-malformed",
    ),
    "unknown rank": (
        _model_of(_RELU, inputs=[onnx.ValueInfoProto(name="x", type=helper.make_tensor_type_proto(FLOAT, None))]),
        "unsupported-model",
    ),
    "sequence input": (_sequence_input, "unsupported-model"),
    "optional input": (_optional_input, "unsupported-model"),
    "claims 2 GB in 1 kB": (_claim, "model-malformed"),
    "computes 4 TB from 1 kB": (_huge_constant, "model-too-large"),
    "data at ../../etc/passwd": (lambda folder: _external(folder, "../../etc/passwd"), "model-unsafe"),
    "data at /etc/passwd": (lambda folder: _external(folder, "/etc/passwd"), "model-unsafe"),
    "data behind a link": (_symlinked, "model-unsafe"),
    "data in a pipe": (_pipe, "model-unsafe"),
    "data missing": (lambda folder: _external(folder, "gone.bin"), "model-malformed"),
    "data beyond its file": (_beyond, "model-malformed"),
    "data at no offset": (_bad_offset, "model-malformed"),
    "functions that double 30 times": (_exponential_functions, "model-too-large"),
    "function that calls itself": (_recursive_function, "model-malformed"),
}
"""What is wrong → (builder of the file in a folder, code of the error)."""
