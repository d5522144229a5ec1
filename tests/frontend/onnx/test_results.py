"""Sizes that take many terms to write: refused by name, before they take minutes or make what no reader takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from relaxc.service.errors import UnsupportedModel
from relaxc.service.frontend import load
from relaxc.service.frontend.onnx.dims import MAX_DIM_CHARS
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import FLOAT, model, node, value, write


def joined(layers: int) -> Any:
    """Each layer joins its input with its halves: the size that it gives has twice the terms."""
    nodes, x = [], "x"
    for layer in range(layers):
        half, both = f"half{layer}", f"both{layer}"
        nodes.append(node("MaxPool", [x], [half], kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 1, 1]))
        nodes.append(node("Concat", [half, x], [both], axis=2))
        x = both
    nodes.append(node("ReduceSum", [x, "axes"], ["total"], keepdims=0))
    outputs = [helper.make_tensor_value_info("total", FLOAT, None), helper.make_tensor_value_info(x, FLOAT, None)]
    return model(nodes, [value("x", [1, 2, "h", 4])], outputs, axes=np.array([2], "int64"))


def test_a_size_that_a_signature_holds_is_written(tmp_path: Path) -> None:
    total, both = load(write(tmp_path, joined(4)), ModelFormat.ONNX, shapes={}).signature.outputs
    assert total.shape == (1, 2, 4) and len(both.shape[2]) <= MAX_DIM_CHARS


def test_an_output_of_a_longer_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=f"output 'both5': a size of more than {MAX_DIM_CHARS} characters"):
        load(write(tmp_path, joined(6)), ModelFormat.ONNX, shapes={})


def test_more_terms_than_are_computed_with_are_refused_by_node(tmp_path: Path) -> None:
    """Each layer took three times as long as the one before: 30 of them took for ever."""
    with pytest.raises(UnsupportedModel, match="so many terms"):
        load(write(tmp_path, joined(30)), ModelFormat.ONNX, shapes={})
