"""An If whose branches fit different sizes: by the sizes of a call, or by the value of an input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import relaxc
from relaxc.service.errors import ArtifactError, InputShape, InvalidOption, ModelMalformed, UnsupportedModel
from relaxc.service.frontend import load
from relaxc.service.frontend.model import Move
from relaxc.service.frontend.onnx.reference import double_reference, moved_reference, reference
from relaxc.service.request import CompileOptions, ModelFormat
from relaxc.service.runtime.sizes import cases, choose_sizes
from relaxc.service.signature import Signature
from tests.frontend.onnx.harness import FLOAT, INT64, check, model, node, value, write


def _graph(name: str, *nodes: Any, **weights: Any) -> Any:
    held = [numpy_helper.from_array(array, key) for key, array in weights.items()]
    return helper.make_graph(
        list(nodes), name, [], [helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)], held
    )


def _squeezed(shape: list[int | str] | None) -> Any:
    """torch's `x.squeeze(-1)` of what is as long as half of x, traced, and a sum along the axis before that."""
    then = _graph("t", node("Squeeze", ["half", "last"], ["p"]))
    otherwise = _graph("e", node("Identity", ["half"], ["q"]))
    nodes = [
        node("MaxPool", ["x"], ["half"], kernel_shape=[2], strides=[2]),
        node("Shape", ["half"], ["s"], start=2),
        node("Equal", ["s", "one"], ["is_one"]),
        node("If", ["is_one"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    out = helper.make_tensor_value_info("y", FLOAT, shape)
    return model(nodes, [value("x", ["n", 3, "l"])], [out], last=np.array([-1]), one=np.array([1]))


def test_sizes_decide_as_the_output_is_declared(tmp_path: Path) -> None:
    signature = check(write(tmp_path, _squeezed(["n", 3])), sizes={"l": 3, "n": 2}).signature
    assert signature.outputs[0].shape == ("n", 3)
    assert [each.text for each in signature.conditions if "==" in each.text] == ["l // 2 - 1 == 0"]


def test_sizes_that_nothing_decides_stay_many(tmp_path: Path) -> None:
    signature = check(write(tmp_path, _squeezed(None)), sizes={"l": 5, "n": 2}).signature
    assert signature.outputs[0].shape == ("n", 3, "l // 2")


def _by_rate(*pools: int) -> Any:
    """Weights of 3 rows for what is left of x by pools of each branch: other lengths for one rate than for another."""
    branches = [
        _graph(
            f"b{pool}",
            node("MaxPool", ["x"], [f"a{pool}"], kernel_shape=[pool], strides=[pool]),
            node("MatMul", [f"a{pool}", f"w{pool}"], [f"y{pool}"]),
            **{f"w{pool}": np.arange(6, dtype="float32").reshape(3, 2) + pool},
        )
        for pool in pools
    ]
    nodes = [
        node("Equal", ["rate", "fast"], ["is_fast"]),
        node("If", ["is_fast"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = [value("x", ["n", 1, "l"]), value("rate", [], INT64)]
    return model(nodes, inputs, [helper.make_tensor_value_info("y", FLOAT, None)], fast=np.array(16000))


def test_each_value_has_sizes_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, _by_rate(4, 2))
    signature = load(path, ModelFormat.ONNX).signature
    told = {(each.text, each.when) for each in signature.conditions}
    fast, slow = ("rate", "==", 16000), ("rate", "!=", 16000)
    assert told == {("l >= 12", fast), ("l <= 15", fast), ("l >= 6", slow), ("l <= 7", slow)}
    assert Signature.from_dict(signature.to_dict()) == signature
    for case, values in cases(signature):
        assert all((sizes["l"] // (4 if values == {"rate": 16000} else 2)) == 3 for sizes in choose_sizes(case))
    made = relaxc.compile(path, target="x86-64-v3")
    session = relaxc.load(made.path)
    reference = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for length, rate, other in ((12, 16000, 8000), (15, 16000, 0), (6, 8000, 16000), (7, 0, 16000)):
        x = np.random.default_rng(length).standard_normal((2, 1, length)).astype("float32")
        given = {"x": x, "rate": np.array(rate)}
        np.testing.assert_allclose(session(given)["y"], reference.run(None, given)[0], rtol=1e-5)
        with pytest.raises(InputShape, match="If_y"):
            session({**given, "rate": np.array(other)})


def test_a_product_of_sizes_that_is_0_fixes_the_one_that_can_be(tmp_path: Path) -> None:
    """An export with a batch of 1 reshapes `[n, b, 6]` to `[n, 1, 2, 3]`."""
    nodes = [
        node("Shape", ["x"], ["n"], end=1),
        node("Concat", ["n", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    out = helper.make_tensor_value_info("y", FLOAT, None)
    proto = model(nodes, [value("x", ["n", "b", 6])], [out], rest=np.array([1, 2, 3]))
    assert check(write(tmp_path, proto)).signature.inputs[0].shape == ("n", 1, 6)


def test_float64_and_moved_values_go_into_the_branch_that_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path, _by_rate(4, 2))
    given = {"x": np.random.default_rng(0).standard_normal((2, 1, 12)).astype("float32"), "rate": np.array(16000)}
    want = reference(path, 1)(given)["y"]
    double, moved = double_reference(path), moved_reference(path, 1, Move.VALUES, 0, 1e-4)
    assert double is not None
    assert moved is not None
    np.testing.assert_allclose(double(given)["y"], want, rtol=1e-6)
    assert 0 < np.abs(moved(given)["y"] - want).max() < 1e-2


def test_a_value_that_is_fixed_leaves_the_other_branch_out(tmp_path: Path) -> None:
    path = write(tmp_path, _by_rate(4, 2))
    made = relaxc.compile(path, target="x86-64-v3", options=CompileOptions(values=(("rate", 8000),)))
    assert {each.text for each in made.manifest.signature.conditions} == {"l // 2 - 3 == 0", "l >= 2", "0 == 1"}
    assert CompileOptions.from_dict(made.manifest.options | {"records": []}).values == (("rate", 8000),)
    session = relaxc.load(made.path)
    given = {"x": np.random.default_rng(0).standard_normal((2, 1, 7)).astype("float32"), "rate": np.array(8000)}
    reference = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for _ in range(3):
        np.testing.assert_allclose(session(given)["y"], reference.run(None, given)[0], rtol=1e-5)
    call = session.bind(given)
    for other in (16000, 0):
        with pytest.raises(InputShape, match=r"'rate' was fixed to 8000"):
            session({**given, "rate": np.array(other)})
    given["rate"][...] = 16000
    with pytest.raises(ArtifactError, match="the program failed"):
        call()


@pytest.mark.parametrize("name", ["x", "none"])
def test_a_value_of_what_is_no_integer_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=f"--value {name}"):
        load(write(tmp_path, _by_rate(4, 2)), ModelFormat.ONNX, values={name: 1})


def test_a_branch_that_fits_no_size_is_one_that_no_call_takes(tmp_path: Path) -> None:
    """`--shape` for one branch leaves nothing for the other."""
    path = write(tmp_path, _by_rate(4, 2))
    signature = load(path, ModelFormat.ONNX, shapes={"x": (1, 1, 12)}).signature
    assert [(each.text, each.when) for each in signature.conditions] == [("0 == 1", ("rate", "!=", 16000))]
    assert [values for _, values in cases(signature)] == [{"rate": 16000}]
    with pytest.raises(ModelMalformed, match="joins the sizes 3 and 2"):
        load(path, ModelFormat.ONNX, shapes={"x": (1, 1, 9)})


def test_a_refusal_names_the_option_that_helps(tmp_path: Path) -> None:
    pooled = [node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2])]
    out = helper.make_tensor_value_info("y", FLOAT, None)
    proto = model(pooled, [value("x", [1, 1, "l"])], [out], w=np.ones((1, 1, 3), "float32"))
    with pytest.raises(UnsupportedModel, match=r"symbolic size \(`--shape` fixes it"):
        load(write(tmp_path, proto), ModelFormat.ONNX)
