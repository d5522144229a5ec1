"""ONNX Runtime dies of the least integer by -1: where that may be, it is in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from relaxc.service import compiler
from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.onnx.apart import may_die
from relaxc.service.frontend.onnx.reference import plain_reference, reference
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import INT64, model, node, value, write

LEAST = -(2**63)


def _chosen(op: str, divisor: int) -> Any:
    """The least integer, or 5, as a bool says, divided."""
    nodes = [node("Where", ["b", "least", "five"], ["v"]), node(op, ["v", "divisor"], ["y"])]
    held = {"least": np.int64(LEAST), "five": np.int64(5), "divisor": np.int64(divisor)}
    return model(nodes, [value("b", [4], TensorProto.BOOL)], [value("y", [4], INT64)], **held)


def test_divisions_that_a_constant_makes_harmless_stay_here() -> None:
    assert may_die(_chosen("Div", -1)) and may_die(_chosen("Mod", 0))
    assert not may_die(_chosen("Div", 3))
    for dtype, dies in ((INT64, True), (TensorProto.FLOAT, False)):
        inputs = [value("x", [4], dtype), value("z", [4], dtype)]
        made = model([node("Add", ["z", "z"], ["d"]), node("Div", ["x", "d"], ["y"])], inputs, [value("y", [4], dtype)])
        assert may_die(made) == dies


@pytest.mark.parametrize("made", [reference, plain_reference])
def test_its_death_is_an_error_and_the_next_run_is_another_process(made: Any, tmp_path: Path) -> None:
    run = made(write(tmp_path, _chosen("Div", -1)), 1)
    for _ in range(2):
        with pytest.raises(ModelMalformed, match="its process ended by SIGFPE"):
            run({"b": np.array([False, True, False, False])})
        assert run({"b": np.zeros(4, bool)})["y"].tolist() == [-5] * 4


def test_what_it_raises_comes_through(tmp_path: Path) -> None:
    run = reference(write(tmp_path, _chosen("Div", -1)), 1)
    with pytest.raises(ModelMalformed, match="Got invalid dimensions"):
        run({"b": np.zeros(5, bool)})


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_a_model_in_which_it_dies_is_verified_where_it_lives(op: str, tmp_path: Path) -> None:
    compiler.run(compiler.prepare(write(tmp_path, _chosen(op, -1)), target="x86-64-v3"), tmp_path, lambda event: None)
    session = load(tmp_path / "model.so")
    found: Any = session.manifest.verification
    assert found["passed"]
    got = session(b=np.array([True, False, True, False]))["y"].tolist()
    assert got == ([LEAST, -5] * 2 if op == "Div" else [0] * 4)


def test_a_divisor_of_rank_0_is_drawn_otherwise_as_an_array(tmp_path: Path) -> None:
    """0 is drawn for it first, at which ONNX Runtime stops."""
    scalars = [value(name, [], TensorProto.INT32) for name in ("a", "b")]
    made = model([node("Div", ["a", "b"], ["y"])], scalars, [value("y", [], TensorProto.INT32)])
    compiler.run(compiler.prepare(write(tmp_path, made), target="x86-64-v3"), tmp_path, lambda event: None)
    found: Any = load(tmp_path / "model.so").manifest.verification
    assert found["passed"]
