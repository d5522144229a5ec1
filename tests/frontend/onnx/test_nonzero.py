"""NonZero, whose number of places only the data decides, and what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontend.onnx.harness import FLOAT, INT64, compiled, model, node, value


@pytest.mark.parametrize("op", ["Add", "Mul", "Less"])
def test_what_follows_nonzero_iscompiled(op: str, tmp_path: Path) -> None:
    """How many it finds is at least 0, and nothing has to be checked."""
    nodes = [node("NonZero", ["x"], ["places"]), node(op, ["places", "three"], ["y"])]
    out = helper.make_tensor_value_info("y", TensorProto.BOOL if op == "Less" else INT64, None)
    session = compiled(tmp_path, model(nodes, [value("x", [7])], [out], three=np.int64(3)))
    x = np.array([0, 1, 0, 2, 3, 0, 4], "float32")
    want = {"Add": np.add, "Mul": np.multiply, "Less": np.less}[op](np.nonzero(x), 3)
    np.testing.assert_array_equal(session(x=x)["y"], want)


PLACES = [node("NonZero", ["x"], ["rows"]), node("Squeeze", ["rows", "axis"], ["places"])]
AFTER: dict[str, tuple[list[Any], Any]] = {
    "a place beside all": (
        [node("Gather", ["places", "at"], ["first"]), node("Sub", ["places", "first"], ["y"])],
        lambda x: np.nonzero(x)[0] - np.nonzero(x)[0][0],
    ),
    "all before and behind": (
        [node("Slice", ["places", "axis", "two"], ["some"]), node("Mul", ["places", "places"], ["squares"]),
         node("Concat", ["some", "squares"], ["y"], axis=0)],
        lambda x: np.concatenate([np.nonzero(x)[0][:2], np.nonzero(x)[0] ** 2]),
    ),
    "the same places again": (
        [node("NonZero", ["x"], ["others"]), node("Squeeze", ["others", "axis"], ["again"]),
         node("Add", ["places", "again"], ["y"])],
        lambda x: 2 * np.nonzero(x)[0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER)
def test_what_nonzero_found_is_read_several_times(name: str, tmp_path: Path) -> None:
    """How many it found had another name where it is counted than where it is read, and no kernel had both."""
    nodes, want = AFTER[name]
    weights = {"axis": np.array([0]), "two": np.array([2]), "at": np.int64(0)}
    out = helper.make_tensor_value_info("y", INT64, None)
    session = compiled(tmp_path, model([*PLACES, *nodes], [value("x", ["n"])], [out], **weights))
    x = np.array([0, 1, 0, 2, 3, 0, 4], "float32")
    np.testing.assert_array_equal(session(x=x)["y"], want(x))


def test_a_number_is_searched_and_a_tensor_repeated_no_times(tmp_path: Path) -> None:
    nodes = [node("NonZero", ["x"], ["y"]), node("Tile", ["rows", "none"], ["z"])]
    outs = [helper.make_tensor_value_info("y", INT64, None), helper.make_tensor_value_info("z", FLOAT, None)]
    proto = model(nodes, [value("x", []), value("rows", ["n", 3])], outs, none=np.array([1, 0]))
    got = compiled(tmp_path, proto)(x=np.float32(2), rows=np.ones((2, 3), "float32"))
    assert got["y"].tolist() == [[0]] and got["z"].shape == (2, 0)
