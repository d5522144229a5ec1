"""RecognizeActivations, RecognizeNorms and RecognizeSafeSoftmax: arithmetic becomes one operator again."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from relaxc.service.frontend import load
from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.recognize.recognize_activations import RecognizeActivations
from relaxc.service.passes.recognize.recognize_norms import RecognizeNorms
from relaxc.service.passes.recognize.recognize_safe_softmax import RecognizeSafeSoftmax
from relaxc.service.request import CompileOptions, ModelFormat
from tests.frontend.onnx.harness import model, node, value, write
from tests.passes.graphs import TARGET, assert_becomes, assert_unchanged, compute, graph, ops, random, run


def number(value: float) -> Any:
    return constant(np.float32(value))


HALF, ONE, ROOT = number(0.5), number(1), number(math.sqrt(2))
CUBIC, TANH_SCALE = number(0.044715), number(math.sqrt(2 / math.pi))


def one_plus_erf(x: Any) -> Any:
    return op.add(ONE, op.erf(op.divide(x, ROOT)))


def tanh_gate(x: Any) -> Any:
    cube = op.multiply(CUBIC, op.power(x, number(3)))
    return op.add(op.tanh(op.multiply(TANH_SCALE, op.add(x, cube))), ONE)


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gelu, half first": (lambda x: op.multiply(op.multiply(HALF, x), one_plus_erf(x)), op.nn.gelu),
    "gelu, half last": (lambda x: op.multiply(op.multiply(x, one_plus_erf(x)), HALF), op.nn.gelu),
    "gelu, half inside": (lambda x: op.multiply(x, op.multiply(one_plus_erf(x), HALF)), op.nn.gelu),
    "gelu, divided": (lambda x: op.divide(op.multiply(one_plus_erf(x), x), number(2)), op.nn.gelu),
    "gelu, multiplied root": (
        lambda x: op.multiply(op.multiply(x, op.add(op.erf(op.multiply(x, number(math.sqrt(0.5)))), ONE)), HALF),
        op.nn.gelu,
    ),
    "gelu_tanh": (lambda x: op.multiply(op.multiply(HALF, x), tanh_gate(x)), op.nn.gelu_tanh),
    "silu": (lambda x: op.multiply(op.sigmoid(x), x), op.nn.silu),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    before, after = ACTIVATIONS[name]
    given, expected = graph(before, x=("n", 8)), graph(after, x=("n", 8))
    assert_becomes(given, RecognizeActivations(), expected)
    x = random(3, 8) * 3
    np.testing.assert_allclose(compute(given, x)[0], compute(expected, x)[0], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.multiply(x, one_plus_erf(x)),  # no half
        lambda x: op.multiply(op.multiply(HALF, op.exp(x)), one_plus_erf(x)),  # another factor
        lambda x: op.multiply(op.multiply(HALF, x), op.add(ONE, op.erf(x))),  # no root
        lambda x: op.multiply(op.multiply(HALF, x), op.add(ONE, op.tanh(x))),
        lambda x: op.multiply(x, op.sigmoid(op.multiply(x, number(1.702)))),
    ],
)
def test_what_only_looks_like_an_activation_stays(build: Any) -> None:
    assert_unchanged(graph(build, x=(2, 8)), RecognizeActivations())


def layer_norm_by_hand(x: Any, root: Callable[[Any], Any]) -> Any:
    builder = relax.BlockBuilder.current()
    centered = builder.emit(op.subtract(x, op.mean(x, [-1], keepdims=True)))
    variance = op.mean(op.multiply(centered, centered), [-1], keepdims=True)
    return root(centered, op.add(variance, number(1e-5)))


GAMMA, BETA = constant(random(8, seed=1)), constant(random(8, seed=2))
BY_ROOT = lambda d, v: op.divide(d, op.sqrt(v))  # noqa: E731
BY_RSQRT = lambda d, v: op.multiply(d, op.rsqrt(v))  # noqa: E731


def test_layer_norm_of_a_file_that_has_a_power_for_the_root(tmp_path: Path) -> None:
    """Pow by 0.5 is guarded against -inf, of which sqrt makes NaN."""
    held = {"two": np.float32(2), "half": np.float32(0.5), "epsilon": np.float32(1e-5)}
    nodes = [
        node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        node("Sub", ["x", "mean"], ["centered"]),
        node("Pow", ["centered", "two"], ["squares"]),
        node("ReduceMean", ["squares"], ["variance"], axes=[-1]),
        node("Add", ["variance", "epsilon"], ["positive"]),
        node("Pow", ["positive", "half"], ["deviation"]),
        node("Div", ["centered", "deviation"], ["y"]),
    ]
    path = write(tmp_path, model(nodes, [value("x", [2, 8])], [value("y", [2, 8])], opset=13, **held))
    found = RecognizeNorms()(load(path, ModelFormat.ONNX, shapes={}).module)
    assert "relax.nn.layer_norm" in {name if name.startswith("relax.") else f"relax.{name}" for name in ops(found)}


@pytest.mark.parametrize("root", [BY_ROOT, BY_RSQRT], ids=["divide", "rsqrt"])
def test_layer_norm_with_scale_and_shift(root: Any) -> None:
    given = graph(lambda x: op.add(op.multiply(layer_norm_by_hand(x, root), GAMMA), BETA), x=("n", 3, 8))
    epsilon = float(np.float32(1e-5))
    expected = graph(lambda x: op.nn.layer_norm(x, GAMMA, BETA, axes=-1, epsilon=epsilon), x=("n", 3, 8))
    assert_becomes(given, RecognizeNorms(), expected)
    x = random(2, 3, 8)
    np.testing.assert_allclose(compute(given, x)[0], compute(expected, x)[0], rtol=1e-5, atol=1e-5)


def test_rms_norm() -> None:
    def given(x: Any) -> Any:
        mean = op.mean(op.power(x, number(2)), [-1], keepdims=True)
        return op.multiply(GAMMA, op.multiply(x, op.rsqrt(op.add(mean, number(1e-6)))))

    epsilon = float(np.float32(1e-6))
    expected = graph(lambda x: op.nn.rms_norm(x, GAMMA, axes=-1, epsilon=epsilon), x=("b", "s", 8))
    assert_becomes(graph(given, x=("b", "s", 8)), RecognizeNorms(), expected)


def test_a_mean_over_another_axis_is_no_norm() -> None:
    def given(x: Any) -> Any:
        return op.multiply(x, op.rsqrt(op.add(op.mean(op.multiply(x, x), [1], keepdims=True), number(1e-6))))

    assert_unchanged(graph(given, x=(2, 3, 8)), RecognizeNorms())


def masked(x: Any, flags: Callable[[Any], Any], none: Callable[[Any], Any]) -> Any:
    any_ = op.max(op.astype(flags(x), "int8"), [-1], keepdims=True)
    return op.where(none(any_), number(0), op.nn.softmax(x, axis=-1))


SAFE = {
    "torch's decomposition": lambda x: masked(
        x,
        lambda x: op.logical_not(op.equal(x, number(-math.inf))),
        lambda any_: op.logical_not(op.astype(any_, "bool")),
    ),
    "the frontend's": lambda x: masked(
        x, lambda x: op.greater(x, number(-math.inf)), lambda any_: op.equal(any_, constant(np.int8(0)))
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_safe_softmax(name: str) -> None:
    module = graph(SAFE[name], x=("n", 4, 6))
    with TARGET:
        after = relax.transform.DeadCodeElimination()(RecognizeSafeSoftmax()(module))
    assert ops(after) == ["call_tir"]
    x = random(2, 4, 6) * 30
    x[0, 1] = -np.inf
    x[1, 2, 3:] = -np.inf
    got = run(optimize(module, TARGET, CompileOptions()), x)[0]
    np.testing.assert_allclose(got, compute(module, x)[0], rtol=1e-6, atol=1e-7)
    assert (got[0, 1] == 0).all()


def test_safe_softmax_keeps_nan() -> None:
    x = random(1, 2, 6)
    x[0, 1, 2] = np.nan
    got = run(optimize(graph(SAFE["torch's decomposition"], x=(1, 2, 6)), TARGET, CompileOptions()), x)[0]
    assert np.isnan(got[0, 1]).all()
    assert np.isfinite(got[0, 0]).all()


def test_a_flag_over_another_axis_is_no_safe_softmax() -> None:
    def net(x: Any) -> Any:
        any_ = op.max(op.astype(op.greater(x, number(-math.inf)), "int8"), [0], keepdims=True)
        return op.where(op.equal(any_, constant(np.int8(0))), number(0), op.nn.softmax(x, axis=-1))

    assert_unchanged(graph(net, x=(6, 6)), RecognizeSafeSoftmax())
