"""SimplifyAlgebra: Before and Expected of each rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.simplify.simplify_algebra import SimplifyAlgebra
from tests.passes.graphs import assert_becomes, assert_unchanged, compute, graph, random


def number(value: float, dtype: str = "float32") -> Any:
    return constant(np.array(value), dtype)


def none(*shape: Any) -> Any:
    """A tensor of no elements."""
    return op.zeros(list(shape), "float32")


def joined(*parts: Any, axis: int) -> Any:
    """A concatenation of values that are bound."""
    return op.concat([relax.BlockBuilder.current().emit(part) for part in parts], axis=axis)


REWRITTEN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "x + 0": (lambda x: op.exp(op.add(x, number(0))), op.exp),
    "0 + x": (lambda x: op.exp(op.add(number(0), x)), op.exp),
    "x - 0": (lambda x: op.exp(op.subtract(x, number(0))), op.exp),
    "x * 1": (lambda x: op.exp(op.multiply(x, constant(np.ones((1, 4), "float32")))), op.exp),
    "x / 1": (lambda x: op.exp(op.divide(x, number(1))), op.exp),
    "x ** 1": (lambda x: op.exp(op.power(x, number(1))), op.exp),
    "x ** 2": (lambda x: op.power(x, number(2)), lambda x: op.multiply(x, x)),
    "cast to itself": (lambda x: op.exp(op.astype(x, "float32")), op.exp),
    "cast there and back": (lambda x: op.exp(op.astype(op.astype(x, "float64"), "float32")), op.exp),
    "maximum": (lambda x: op.maximum(x, number(0)), op.nn.relu),
    "clip from 0": (lambda x: op.clip(x, 0, math.inf), op.nn.relu),
    "torch's hardtanh": (
        lambda x: op.clip(op.clip(x, 0, math.inf), -math.inf, 6),
        lambda x: op.clip(x, relax.prim_value(0.0), relax.prim_value(6.0)),
    ),
    "ReLU6 of an exporter": (
        lambda x: op.minimum(op.maximum(x, number(0)), number(6)),
        lambda x: op.clip(x, relax.prim_value(0.0), relax.prim_value(6.0)),
    ),
    "relu of relu": (lambda x: op.nn.relu(op.nn.relu(x)), op.nn.relu),
    "double negation": (lambda x: op.exp(op.negative(op.negative(x))), op.exp),
    "concat of one": (lambda x: op.exp(op.concat([x])), op.exp),
    "concat with none": (lambda x: op.exp(joined(none(0, 4), x, axis=0)), op.exp),
    "concat of two and none": (
        lambda x: joined(x, none(x.ty.shape[0], 0), op.abs(x), axis=1),
        lambda x: joined(x, op.abs(x), axis=1),
    ),
    "dropout": (lambda x: op.exp(relax.TupleGetItem(op.nn.dropout(x, 0.5), 0)), op.exp),
    "fill": (
        lambda x: op.where(op.isnan(x), op.full_like(x, number(0)), x),
        lambda x: op.where(op.isnan(x), number(0), x),
    ),
}


@pytest.mark.sampled(most=9)
@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, after = REWRITTEN[name]
    given, expected = graph(before, x=("n", 4)), graph(after, x=("n", 4))
    assert_becomes(given, SimplifyAlgebra(), expected)
    x = random(3, 4)
    np.testing.assert_allclose(compute(given, x)[0], compute(expected, x)[0], rtol=1e-6)


KEPT: dict[str, Callable[..., Any]] = {
    "0 - x": lambda x: op.subtract(number(0), x),
    "1 / x": lambda x: op.divide(number(1), x),
    "x + 0 that broadcasts": lambda x: op.add(x, constant(np.zeros((2, 1, 4), "float32"))),
    "a cast that rounds": lambda x: op.astype(op.astype(x, "float16"), "float32"),
    "clips that do not overlap": lambda x: op.clip(op.clip(x, 0, 1), 2, 3),
    "x ** 3": lambda x: op.power(x, number(3)),
    "a fill that shapes": lambda x: op.where(number(1, "bool"), op.full([2, 1, 4], number(0), "float32"), x),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    assert_unchanged(graph(KEPT[name], x=("n", 4)), SimplifyAlgebra())


def test_a_cast_through_fewer_bits_stays_for_integers() -> None:
    given = graph(lambda x: op.astype(op.astype(x, "int32"), "int64"), x=("int64", (3,)))
    assert_unchanged(given, SimplifyAlgebra())


@pytest.mark.parametrize("fill", [2**62 + 1, -(2**53) - 1, 2**63 - 1])
def test_a_fill_of_integers_keeps_its_digits(fill: int) -> None:
    def before(x: Any) -> Any:
        return op.where(op.less(x, number(0, "int64")), op.full_like(x, number(fill, "int64")), x)

    def after(x: Any) -> Any:
        return op.where(op.less(x, number(0, "int64")), number(fill, "int64"), x)

    given, expected = (graph(each, x=("int64", ("n",))) for each in (before, after))
    assert_becomes(given, SimplifyAlgebra(), expected)
