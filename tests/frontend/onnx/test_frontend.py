"""load, inspect and the signature: names, symbolic sizes, what is refused, and the module's convention."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relaxc.service.config import Settings
from relaxc.service.errors import InvalidShape, ModelNotFound, ModelTooLarge, ModelUnsafe, UnsupportedModel
from relaxc.service.frontend import digest, external_files, former_digest, identify, inspect, load, reference
from relaxc.service.frontend.onnx.reference import double_reference
from relaxc.service.request import ModelFormat, model_digest
from relaxc.service.signature import DimBounds
from tests.frontend.onnx.harness import INT64, check, compare, inputs_for, model, node, run, value, write

ONNX = ModelFormat.ONNX


def _linear(batch: int | str | None = "batch") -> Any:
    weight = np.random.default_rng(1).standard_normal((8, 4)).astype("float32")
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])]
    return model(nodes, [value("x", [batch, 8])], [value("y", [batch, 4])], w=weight)


def test_module_follows_the_convention(tmp_path: Path) -> None:
    from tvm import relax

    imported = check(write(tmp_path, _linear()))
    main = imported.module["main"]
    assert [parameter.name for parameter in main.params] == ["x"]
    assert isinstance(main.ret_ty, relax.TupleType)
    assert [str(dim) for dim in main.params[0].ty.shape.values] == ["batch", "T.int64(8)"]
    relax.analysis.well_formed(imported.module)
    assert imported.op_counts == {"MatMul": 1, "Relu": 1}


def test_signature_names_symbolic_sizes(tmp_path: Path) -> None:
    signature = load(write(tmp_path, _linear()), ONNX).signature
    assert str(signature.inputs[0]) == "x: float32[batch, 8]"
    assert str(signature.outputs[0]) == "y: float32[batch, 4]"
    assert signature.bounds == {"batch": DimBounds(1, None)}


def test_an_unnamed_size_gets_a_name_of_its_input(tmp_path: Path) -> None:
    signature = check(write(tmp_path, _linear(None))).signature
    assert signature.inputs[0].shape == ("x_0", 8)
    assert signature.outputs[0].shape == ("x_0", 4)


@pytest.mark.parametrize(("text", "name"), [("batch-size", "batch - size"), ("?", "_"), ("1st dim", "d_1st_dim")])
def test_a_name_that_is_no_identifier_still_works(tmp_path: Path, text: str, name: str) -> None:
    signature = check(write(tmp_path, _linear(text))).signature
    assert signature.outputs[0].shape[0] == signature.inputs[0].shape[0]
    assert str(signature.inputs[0].shape[0]).isidentifier(), name


def test_an_expression_over_other_sizes_stays_one(tmp_path: Path) -> None:
    nodes = [node("Concat", ["a", "b"], ["y"], axis=0)]
    proto = model(nodes, [value("a", ["n", 2]), value("b", ["2*n + 1", 2])], [value("y", ["m", 2])])
    signature = check(write(tmp_path, proto), sizes={"n": 3}).signature
    assert signature.inputs[1].shape[0] == "2 * n + 1"
    assert signature.outputs[0].shape[0] == "n * 3 + 1"


def test_shapes_fix_and_rename(tmp_path: Path) -> None:
    path = write(tmp_path, _linear())
    fixed = check(path, shapes={"x": (5, 8)})
    assert fixed.signature.outputs[0].shape == (5, 4)
    assert fixed.signature.dims == ()
    assert check(path, shapes={"x": ("rows", 8)}).signature.outputs[0].shape == ("rows", 4)


def test_a_fixed_size_holds_everywhere(tmp_path: Path) -> None:
    nodes = [node("Add", ["a", "b"], ["y"])]
    path = write(tmp_path, model(nodes, [value("a", ["n"]), value("b", ["n"])], [value("y", ["n"])]))
    signature = check(path, shapes={"a": (6,)}).signature
    assert [spec.shape for spec in (*signature.inputs, *signature.outputs)] == [(6,)] * 3


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": (1, 8)}, "no input 'z'"),
        ({"x": (1, 8, 1)}, "rank 2, not 3"),
        ({"x": (1, 9)}, "fixed size 8, not 9"),
        ({"x": (1, "m")}, "fixed size 8, not m"),
        ({"x": ("a b", 8)}, "neither a size nor a name"),
    ],
)
def test_shapes_that_do_not_fit(tmp_path: Path, shapes: Any, words: str) -> None:
    with pytest.raises(InvalidShape, match=words):
        load(write(tmp_path, _linear()), ONNX, shapes=shapes)


def test_all_unsupported_nodes_at_once(tmp_path: Path) -> None:
    """Also those in a subgraph, and those that a converter refuses for an attribute."""
    inner = helper.make_graph([node("Frob", ["x"], ["t"])], "then", [], [value("t", [2])])
    other = helper.make_graph([node("Identity", ["x"], ["e"])], "else", [], [value("e", [2])])
    nodes = [
        helper.make_node("Frob", ["x"], ["a"], name="first"),
        helper.make_node("Blur", ["a"], ["b"], name="second", domain="com.example"),
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other),
    ]
    proto = model(nodes, [value("x", [2]), value("c", [], TensorProto.BOOL)], [value("y", [2])])
    path = write(tmp_path, proto)
    with pytest.raises(UnsupportedModel) as caught:
        load(path, ONNX)
    ops = caught.value.fields["ops"]
    assert ops["Frob"]["count"] == 2
    assert ops["Frob"]["nodes"] == ["first", "Frob_t"]
    assert ops["com.example::Blur"]["nodes"] == ["second"]
    info = inspect(path, ONNX)
    assert set(info.unsupported) == set(ops)
    assert info.op_counts["Frob"] == 2


def test_refusals_of_converters_are_collected(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DFT", ["x", "", "k"], ["v"], name="waves"),
        helper.make_node("Dropout", ["x", "", "t"], ["r"], name="drawn"),
        helper.make_node("Add", ["r", "v"], ["y"], name="sum"),
    ]
    inputs = [value("x", [1, 4, 1]), value("k", [], INT64), value("t", [], TensorProto.BOOL)]
    with pytest.raises(UnsupportedModel) as caught:
        load(write(tmp_path, model(nodes, inputs, [value("y", [None, None, None])])), ONNX)
    assert set(caught.value.fields["ops"]) == {"DFT", "Dropout"}
    assert caught.value.fields["ops"]["DFT"]["nodes"] == ["waves"]


def test_inspect_describes_without_compiling(tmp_path: Path) -> None:
    info = inspect(write(tmp_path, _linear()), ONNX)
    assert str(info.signature.inputs[0]) == "x: float32[batch, 8]"
    assert info.details["opset"] == 20
    assert info.details["weight_bytes"] == 8 * 4 * 4
    assert not info.unsupported


def test_inspect_infers_what_outputs_leave_out(tmp_path: Path) -> None:
    proto = _linear()
    proto.graph.output[0].ClearField("type")
    info = inspect(write(tmp_path, proto), ONNX)
    assert str(info.signature.outputs[0]) == "y: float32[batch, 4]"


def test_inputs_and_outputs_that_no_node_touches(tmp_path: Path) -> None:
    """An unused input stays a parameter; an output may be an input or a weight, and be listed twice."""
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["x"], ["z"])]
    inputs = [value("x", ["n"]), value("unused", [2], INT64)]
    outputs = [value("y", ["n"]), value("x", ["n"]), value("w", [3], INT64), value("z", ["n"]), value("y", ["n"])]
    proto = model(nodes, inputs, outputs, w=np.arange(3, dtype="int64"))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    imported = load(path, ONNX)
    assert [spec.name for spec in imported.signature.inputs] == ["x", "unused"]
    assert [spec.name for spec in imported.signature.outputs] == ["y", "x", "w", "z"]
    given = inputs_for(imported.signature)
    got = run(imported, given)
    np.testing.assert_array_equal(got["x"], given["x"])
    np.testing.assert_array_equal(got["z"], given["x"])
    np.testing.assert_array_equal(got["y"], np.maximum(given["x"], 0))
    np.testing.assert_array_equal(got["w"], [0, 1, 2])
    assert got["w"].dtype == np.int64


def test_shape_as_an_output_is_int64(tmp_path: Path) -> None:
    proto = model([node("Shape", ["x"], ["y"])], [value("x", ["n", 3])], [value("y", [2], INT64)])
    check(write(tmp_path, proto), sizes={"n": 7})


def test_a_table_of_positions_bounds_the_sequence(tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((16, 4)).astype("float32")
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["n"], axis=0),
        node("Slice", ["table", "zero", "n"], ["rows"]),
        node("Add", ["x", "rows"], ["y"]),
    ]
    zero, one = np.array([0], "int64"), np.array([1], "int64")
    proto = model(nodes, [value("x", ["b", "seq", 4])], [value("y", ["b", "seq", 4])], table=table, zero=zero, one=one)
    signature = check(write(tmp_path, proto), sizes={"b": 2, "seq": 5}).signature
    assert signature.bounds["seq"] == DimBounds(1, 16)
    assert signature.bounds["b"] == DimBounds(1, None)


def test_sizes_that_only_the_data_decides(tmp_path: Path) -> None:
    proto = model([node("NonZero", ["x"], ["y"])], [value("x", [3, 4])], [value("y", [2, "k"], INT64)])
    imported = load(write(tmp_path, proto), ONNX)
    rank, count = imported.signature.outputs[0].shape
    assert rank == 2
    assert imported.signature.bounds[str(count)] == DimBounds(0, None)
    given = {"x": np.eye(3, 4, dtype="float32")}
    np.testing.assert_array_equal(run(imported, given)["y"], np.nonzero(given["x"]))


def test_nodes_out_of_order_are_sorted(tmp_path: Path) -> None:
    proto = _linear()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    imported = load(path, ONNX)
    assert run(imported, inputs_for(imported.signature))["y"].shape == (3, 4)


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 20)]
    twice = helper.make_function("own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], opsets)
    nodes = [
        helper.make_node("Twice", ["x"], ["h"], domain="own"),
        helper.make_node("Twice", ["h"], ["y"], domain="own"),
    ]
    proto = model(nodes, [value("x", ["n"])], [value("y", ["n"])])
    proto.functions.append(twice)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    assert check(write(tmp_path, proto)).op_counts == {"own::Twice": 2, "Add": 1}


def test_external_data(tmp_path: Path) -> None:
    proto = _linear()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0, convert_attribute=True)
    data = tmp_path / "weights.bin"
    compare(load(path, ONNX), path)
    ref = digest(path, ONNX)
    assert ref.size_bytes == path.stat().st_size + data.stat().st_size
    own, beside = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, data))
    assert ref.digest == model_digest(own, {"weights.bin": beside})
    text = path.read_bytes() + b"weights.bin\0" + data.stat().st_size.to_bytes(8, "little") + data.read_bytes()
    assert former_digest(path, ONNX) == hashlib.sha256(text).hexdigest()
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    assert digest(path, ONNX).digest != ref.digest


@pytest.mark.parametrize("location", ["./weights.bin", "weights.bin", ".//weights.bin", ".\\weights.bin"])
def test_a_file_of_external_data_has_one_name(tmp_path: Path, location: str) -> None:
    proto = _linear()
    (weight,) = proto.graph.initializer
    (tmp_path / "weights.bin").write_bytes(weight.raw_data)
    onnx.external_data_helper.set_external_data(weight, location)
    weight.ClearField("raw_data")
    assert list(external_files(write(tmp_path, proto), ONNX)) == ["weights.bin"]


def test_a_model_is_no_external_data_of_its_own(tmp_path: Path) -> None:
    proto = _linear()
    (weight,) = proto.graph.initializer
    onnx.external_data_helper.set_external_data(weight, "model.onnx", offset=0, length=len(weight.raw_data))
    weight.ClearField("raw_data")
    path = write(tmp_path, proto)
    path.rename(tmp_path / "model.onnx")
    with pytest.raises(ModelUnsafe, match="in the model itself"):
        digest(tmp_path / "model.onnx", ONNX)
    with pytest.raises(ModelUnsafe, match="in the model itself"):
        inspect(tmp_path / "model.onnx", ONNX)


def test_digest_is_that_of_sha256sum(tmp_path: Path) -> None:
    path = write(tmp_path, _linear())
    assert digest(path, ONNX).digest == former_digest(path, ONNX) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_limits_are_enforced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, _linear())
    for name, limits in {"nodes": {"max_graph_nodes": 1}, "bytes": {"max_model_bytes": 100}}.items():
        small = Settings(**limits)
        for module in ("model_file", "onnx.file", "onnx.graph"):
            monkeypatch.setattr(f"relaxc.service.frontend.{module}.settings", lambda small=small: small)
        with pytest.raises(ModelTooLarge, match=name):
            digest(path, ONNX)
            load(path, ONNX)


def test_identify_looks_at_the_content(tmp_path: Path) -> None:
    path = write(tmp_path, _linear(), "model.txt")
    assert identify(path) is ONNX
    (tmp_path / "cut").write_bytes(path.read_bytes()[:60])
    assert identify(tmp_path / "cut") is ONNX
    with pytest.raises(ModelNotFound):
        identify(tmp_path / "none")


def test_two_imports_are_the_same_module(tmp_path: Path) -> None:
    import tvm_ffi

    path = write(tmp_path, _linear())
    assert tvm_ffi.structural_equal(load(path, ONNX).module, load(path, ONNX).module)


@pytest.mark.parametrize(("other", "shape"), [("m", ("n",)), (5, (5,)), ("n", ("n",))])
def test_sizes_that_the_graph_needs_equal_are_one(tmp_path: Path, other: str | int, shape: tuple[Any, ...]) -> None:
    """TVM would check it while running, and lose the check in its passes; so the signature says it."""
    proto = model([node("Add", ["a", "b"], ["y"])], [value("a", ["n"]), value("b", [other])], [value("y", ["n"])])
    signature = check(write(tmp_path, proto)).signature
    assert [spec.shape for spec in (*signature.inputs, *signature.outputs)] == [shape] * 3


def test_a_size_may_be_the_sum_of_others(tmp_path: Path) -> None:
    """As of a decoder's mask: past + new."""
    nodes = [node("Concat", ["past", "new"], ["all"], axis=0), node("Add", ["all", "mask"], ["y"])]
    inputs = [value("past", ["p", 2]), value("new", ["s", 2]), value("mask", ["total", 2])]
    signature = check(write(tmp_path, model(nodes, inputs, [value("y", ["total", 2])]))).signature
    assert signature.inputs[2].shape == ("p + s", 2)
    assert set(signature.bounds) == {"p", "s"}


def test_weights_in_attributes_and_small_initializers(tmp_path: Path) -> None:
    constant = node("Constant", [], ["c"], value=numpy_helper.from_array(np.arange(6, dtype="float32")))
    nodes = [constant, node("Mul", ["x", "c"], ["h"]), node("Add", ["h", "b"], ["y"])]
    proto = model(nodes, [value("x", [2, 6])], [value("y", [2, 6])], b=np.float32(3))
    check(write(tmp_path, proto))


def test_a_function_of_the_model_has_its_default_attributes(tmp_path: Path) -> None:
    body = node("LeakyRelu", ["a"], ["b"])
    body.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    defaults = [helper.make_attribute("slope", 0.25)]
    function = helper.make_function(
        "my", "act", ["a"], ["b"], [body], [helper.make_opsetid("", 20)], attribute_protos=defaults
    )
    nodes = [
        helper.make_node("act", ["x"], ["t"], domain="my"),
        helper.make_node("act", ["t"], ["s"], domain="my", slope=0.5),
        node("Mul", ["s", "w"], ["y"]),
    ]
    proto = model(nodes, [value("x", [64])], [value("y", [64])], w=np.ones(64, "float32"))
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("my", 1))
    path = write(tmp_path, proto)
    check(path)
    x = {"x": np.random.default_rng(0).standard_normal(64).astype("float32")}
    run = double_reference(path)
    assert run is not None
    np.testing.assert_allclose(run(x)["y"], reference(path, ONNX)(x)["y"], rtol=1e-6)


@pytest.mark.parametrize("ir", [3, 10])
@pytest.mark.parametrize("rows", [4, 400])
def test_a_weight_that_is_listed_as_an_input_is_a_weight(ir: int, rows: int, tmp_path: Path) -> None:
    """Before IR version 4 each had to be; since then it is a default. Small ones stay in the protobuf."""
    w = np.arange(rows * 2, dtype="float32").reshape(rows, 2)
    inputs = [value("x", [2, rows]), value("w", [rows, 2])]
    proto = model([node("MatMul", ["x", "w"], ["y"])], inputs, [value("y", [2, 2])], opset=8, w=w)
    proto.ir_version = ir
    imported = check(write(tmp_path, proto))
    assert [spec.name for spec in imported.signature.inputs] == ["x"]


@pytest.mark.parametrize("imported", ["", "ai.onnx"])
def test_both_names_of_the_domain_of_onnx_are_one(imported: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], domain="ai.onnx"), node("Gelu", ["a"], ["y"])]
    proto = model(nodes, [value("x", [3])], [value("y", [3])])
    proto.opset_import[0].domain = imported
    assert check(write(tmp_path, proto)).op_counts == {"Gelu": 1, "Relu": 1}
