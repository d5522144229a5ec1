"""Graphs that a seed draws."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.fuzz.draw import Made, draw
from tests.fuzz.evaluate import Evaluator, NotEvaluated, is_float
from tests.fuzz.operators import is_undefined, operators


@pytest.fixture(scope="module")
def made() -> list[Made]:
    return [draw("test", index) for index in range(24)]


def test_a_seed_and_an_index_draw_one_graph(made: list[Made]) -> None:
    again = draw("test", 3).case
    assert again.model().SerializeToString() == made[3].case.model().SerializeToString()
    for env, other in zip(again.envs, made[3].case.envs, strict=True):
        assert all(np.array_equal(env[name], other[name], equal_nan=is_float(env[name].dtype)) for name in env)


def test_graphs_are_valid_models_that_the_references_evaluate(made: list[Made]) -> None:
    for each in made:
        if "SimplifiedLayerNormalization" not in {node.op_type for node in each.case.nodes}:  # ONNX Runtime's own
            onnx.checker.check_model(each.case.model())
        for env in each.case.envs:
            values = Evaluator(each.case.opset).values(each.case, env)
            assert set(each.case.outputs) <= values.keys()


def test_graphs_differ_in_what_matters(made: list[Made]) -> None:
    cases = [each.case for each in made]
    assert len({case.opset for case in cases}) > 5
    assert {case.options["opt_level"] for case in cases} == {0, 1, 2, 3}
    assert {bool(case.symbols) for case in cases} == {True, False}
    assert len({op for each in made for op in each.nodes}) > 100
    arrays = [array for case in cases for env in case.envs for array in env.values() if is_float(array.dtype)]
    assert any(np.isnan(array.astype(np.float32)).any() for array in arrays)
    symbolic = next(case for case in cases if case.symbols)
    ((name, dims), *_) = symbolic.symbols.items()
    assert len({env[name].shape[axis] for env in symbolic.envs for axis in dims}) > 1


def test_operators_come_from_the_converters() -> None:
    assert {"Conv", "Shape", "com.microsoft::QGemm"} <= set(operators())
    assert len(operators()) > 160
    assert "Relu" not in draw("test", 0, [op for op in operators() if op != "Add"]).nodes


def test_what_no_standard_defines_is_not_drawn() -> None:
    large, zero = np.array([3e9], np.float32), np.array([0], np.int32)
    assert is_undefined("Cast", {"to": onnx.TensorProto.INT32}, [large])
    assert not is_undefined("Cast", {"to": onnx.TensorProto.INT64}, [large])
    assert is_undefined("Div", {}, [zero, zero])
    assert not is_undefined("Div", {}, [large, large])


def test_a_node_on_which_the_references_differ_is_not_drawn() -> None:
    x = np.array([[np.nan, 1], [2, 3]], np.float32)
    weights = [np.ones(shape, np.float32) for shape in ((1, 32, 2), (1, 32, 8), (1, 64))]
    lstm = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=8)  # ONNX Runtime makes numbers of NaN
    assert Evaluator(18).checked(lstm, [x[None, 1:], *weights], has_runtime=True)
    with pytest.raises(NotEvaluated, match="the references differ"):
        Evaluator(18).checked(lstm, [x[None], *weights], has_runtime=True)
    assert Evaluator(18).checked(helper.make_node("Abs", ["x"], ["y"]), [x], has_runtime=True)
