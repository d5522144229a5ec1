"""A model parsed without its large data is the model that protobuf parses, with the data where it lies in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.onnx import file
from relaxc.service.frontend.onnx.outside import Outside, without_data
from relaxc.service.frontend.onnx.reference import reference
from tests.frontend.onnx.harness import model, node, value, write


def large(name: str, dtype: str = "FLOAT", count: int = 2048) -> Any:
    numbers = np.random.default_rng(len(name)).integers(0, 7, (2, count // 2))
    return numpy_helper.from_array(numbers.astype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, dtype))), name)


def everywhere() -> Any:
    """A model with large tensors wherever `file.tensors` finds some, and small and typed ones between them."""
    then = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=large("c"))], "then", [], [value("c", [2, 1024])]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["o"], ["oo"])], "else", [], [value("oo", [2, 1024])], [large("o")]
    )
    choice = helper.make_node("If", ["flag"], ["chosen"], then_branch=then, else_branch=other)
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [1500], [0.5] * 1500)
    body = helper.make_function(
        "own", "F", ["a"], ["b"], [helper.make_node("Constant", [], ["b"], value=large("in F"))],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    held = {"w": np.ones((64, 64), "float32"), "s": np.full(64, 2, "float32"), "flag": np.array(True)}
    nodes = [node("MatMul", ["x", "w"], ["xw"]), node("Mul", ["xw", "s"], ["y"])]
    made = model(nodes, [value("x", [3, 64])], [value("y", [3, 64])], **held)
    made.graph.node.append(choice)
    made.graph.initializer.extend([typed, large("FLOAT16", "FLOAT16"), large("INT4", "INT4", 8192)])
    made.graph.initializer.extend([large("BFLOAT16", "BFLOAT16"), large("INT64", "INT64")])
    made.functions.append(body)
    return made


def put_back(message: Any, outside: Outside) -> Any:
    for tensor in file.tensors(message):
        outside.put_back(tensor)
    return message


def test_nothing_is_lost(tmp_path: Path) -> None:
    whole = everywhere()
    path = write(tmp_path, whole)
    found, outside = file.mapped(path)
    assert found.ByteSize() < whole.ByteSize() - 8 * 4096
    large_ones = [tensor for tensor in file.tensors(found) if outside.data(tensor) is not None]
    assert {tensor.name for tensor in large_ones} == {
        *("w", "c", "o", "in F", "FLOAT16", "INT4", "BFLOAT16", "INT64"),
    }
    assert put_back(found, outside) == whole


def test_arrays_are_protobufs(tmp_path: Path) -> None:
    path = write(tmp_path, everywhere())
    found, outside = file.mapped(path)
    assert file.check_tensors(found, path, outside) == file.check_tensors(file.parse(path), path)
    for ours, theirs in zip(file.tensors(found), file.tensors(file.parse(path)), strict=True):
        array, wanted = file.array(ours, tmp_path, outside), numpy_helper.to_array(theirs)
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        assert array.tobytes() == wanted.tobytes()


def test_large_data_is_read_where_it_lies(tmp_path: Path) -> None:
    found, outside = file.mapped(write(tmp_path, everywhere()))
    array = file.array(found.graph.initializer[0], tmp_path, outside)
    assert np.shares_memory(array, np.frombuffer(outside.content, "uint8"))
    assert not array.flags.writeable


def test_data_that_looks_like_a_mark_is_data() -> None:
    """Of another parse, as a file could have been made from what one had left."""
    message, outside = without_data(memoryview(everywhere().SerializeToString()))
    again = onnx.ModelProto.FromString(bytes(message))
    _, second = without_data(memoryview(bytes(message)))
    assert all(second.data(tensor) is None for tensor in file.tensors(again))
    assert any(outside.data(tensor) is not None for tensor in file.tensors(again))


def test_a_size_that_is_claimed_is_checked(tmp_path: Path) -> None:
    broken = everywhere()
    broken.graph.initializer[0].dims[0] = 65
    path = write(tmp_path, broken)
    found, outside = file.mapped(path)
    with pytest.raises(ModelMalformed, match="claims 16640 bytes and the file holds 16384"):
        file.check_tensors(found, path, outside)


def test_what_is_damaged_is_left_to_protobuf() -> None:
    """A cut anywhere, or a byte that is another: then all is parsed, or what is left out is what protobuf has there."""
    whole = everywhere().SerializeToString()
    random = np.random.default_rng(0)
    for _ in range(300):
        content = bytearray(whole[: random.integers(1, len(whole))] if random.integers(2) else whole)
        content[random.integers(len(content))] = random.integers(256)
        assert _parsed(bytes(content)) == _parsed(bytes(content), ours=True)


def _parsed(content: bytes, *, ours: bool = False) -> Any:
    message, outside = without_data(memoryview(content)) if ours else (content, Outside(memoryview(b"")))
    try:
        return put_back(onnx.ModelProto.FromString(bytes(message)), outside)
    except Exception as error:  # noqa: BLE001  # protobuf's, whatever it is
        return type(error)


def test_a_session_reads_initializers_where_they_lie(tmp_path: Path) -> None:
    path = write(tmp_path, everywhere())
    found, outside = file.mapped(path)
    for tensor in found.graph.initializer:
        outside.name_file(tensor, path.name)
    named = onnx.load_from_string(found.SerializeToString())
    onnx.load_external_data_for_model(named, str(tmp_path))
    for tensor in named.graph.initializer:
        tensor.ClearField("data_location")
    whole = file.parse(path)
    assert [numpy_helper.to_array(tensor).tobytes() for tensor in named.graph.initializer] == [
        numpy_helper.to_array(tensor).tobytes() for tensor in whole.graph.initializer
    ]


@pytest.mark.parametrize("is_link", [False, True])
def test_a_reference_is_of_the_file(tmp_path: Path, is_link: bool) -> None:
    """Also of one that is a link, with data beside the link: ONNX Runtime takes no data from out of a folder."""
    weight = np.random.default_rng(0).random((64, 65), "float32")
    made = model([node("MatMul", ["x", "w"], ["y"])], [value("x", [3, 64])], [value("y", [3, 65])], w=weight)
    path = write(tmp_path, made)
    if is_link:
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / "model.onnx").symlink_to(path)
        path = tmp_path / "links" / "model.onnx"
    x = np.random.default_rng(1).random((3, 64), "float32")
    np.testing.assert_allclose(reference(path, 1)({"x": x})["y"], x @ weight, rtol=1e-5)
