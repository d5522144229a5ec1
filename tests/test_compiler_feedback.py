"""Inputs that have an output for the next call become state: found by name, or told by `--state`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import relaxc
from relaxc.service.errors import InvalidOption, StateOverflow
from relaxc.service.frontend import load as load_model
from relaxc.service.frontend.feedback import with_state
from relaxc.service.request import ModelFormat
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write


def onnx_decoder(folder: Path) -> Path:
    """A cache that is written by rows, one by name, and a recurrence that only the user can tell."""
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) / 3
    nodes = [
        node("ScatterND", ["past.0.key", "place", "x"], ["present.0.key"]),
        node("MatMul", ["present.0.key", "w"], ["y"]),
        node("MatMul", ["h", "w"], ["hw"]),
        node("Add", ["hw", "x"], ["sum"]),
        node("Tanh", ["sum"], ["hn"]),
    ]
    inputs = [
        value("x", [1, 8]),
        value("place", [1, 1], TensorProto.INT64),
        value("past.0.key", [6, 8]),
        value("h", [1, 8]),
    ]
    outputs = [value("y", [6, 8]), value("present.0.key", [6, 8]), value("hn", [1, 8])]
    return write(folder, model(nodes, inputs, outputs, w=weight))


def test_an_onnx_model_keeps_what_the_next_call_has(tmp_path: Path) -> None:
    path = onnx_decoder(tmp_path)
    options = relaxc.CompileOptions(state=(("h", "hn"), ("past.0.key", "present.0.key")))
    made = relaxc.compile(path, target="x86-64-v3", options=options)
    assert made.manifest.verified is True, made.manifest.verification
    assert made.manifest.passes["state"]["past.0.key"] == "in place"
    session, past, h = load(made.path, threads=1), np.zeros((6, 8), np.float32), np.zeros((1, 8), np.float32)
    reference = onnxruntime.InferenceSession(path)
    for place in range(6):
        given = {"x": np.full((1, 8), place + 1, np.float32), "place": np.array([[place]])}
        want, past, h = reference.run(None, {**given, "past.0.key": past, "h": h})
        np.testing.assert_allclose(session(given)["y"], want, rtol=1e-4, atol=1e-4)
    assert session.state is not None
    np.testing.assert_allclose(session.state["h"], h, rtol=1e-4, atol=1e-4)
    with pytest.raises(StateOverflow):
        session(x=given["x"], place=np.array([[6]]))
    np.testing.assert_array_equal(session.state["past.0.key"], past)


def test_pairs_are_found_by_name_and_shape(tmp_path: Path) -> None:
    imported = load_model(onnx_decoder(tmp_path), ModelFormat.ONNX)
    found = with_state(imported, None).signature
    assert [spec.name for spec in found.state] == ["past.0.key"]
    assert [spec.name for spec in found.outputs] == ["y", "hn"]
    assert with_state(imported, {}) is imported
    for wrong in ({"h": "y"}, {"nothing": "hn"}, {"h": "nothing"}):
        with pytest.raises(InvalidOption, match=r"no (in|out)put|cannot become"):
            with_state(imported, wrong)


def test_a_model_of_one_output_keeps_none_by_its_name(tmp_path: Path) -> None:
    nodes = [node("Neg", ["past_kv"], ["present_kv"])]
    path = write(tmp_path, model(nodes, [value("past_kv", [2, 3])], [value("present_kv", [2, 3])]))
    imported = load_model(path, ModelFormat.ONNX)
    assert with_state(imported, None) is imported
