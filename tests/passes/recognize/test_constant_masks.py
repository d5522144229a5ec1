"""Masks that constants determine are computed with one element of each axis along which they repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from relaxc.service.passes.common.rewrite import Scope, rewrite_calls
from relaxc.service.passes.recognize import constant_masks
from relaxc.service.passes.recognize.constant_masks import mask_value
from tests.passes.graphs import graph
from tests.passes.recognize.test_recognize_attention import R

ROWS = np.arange(6, dtype="int64").reshape(1, 1, 6, 1)


def found(net: Any) -> Any:
    """What `mask_value` says of the condition of the one `where` in `net`."""
    values = []

    def look(call: relax.Call, scope: Scope) -> None:
        values.append(mask_value(call.args[0], scope))

    rewrite_calls(graph(net, x=(3, 2, 6, 6)), {"where": look})
    return values[0]


def repeated(array: Any, batch: int = 3) -> relax.Expr:
    return relax.const(np.repeat(array, batch, axis=0), "int64")


def causal(x: relax.Expr) -> relax.Expr:
    mask = R.less_equal(repeated(ROWS.swapaxes(2, 3)), repeated(ROWS))
    return R.where(mask, x, R.multiply(x, relax.const(0.0)))


def test_one_of_the_batch_stands_for_all() -> None:
    value = found(causal)
    assert value.shape == (1, 1, 6, 6) and (value[0, 0] == np.tril(np.ones((6, 6), bool))).all()


def test_what_differs_is_kept_whole() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        limit = np.arange(3, dtype="int64").reshape(3, 1, 1, 1) + ROWS * 0
        return R.where(R.less_equal(repeated(ROWS.swapaxes(2, 3)), relax.const(limit)), x, x)

    value = found(net)
    assert value.shape == (3, 1, 6, 6) and value.sum(axis=(1, 2, 3)).tolist() == [6, 12, 18]


def test_what_a_parameter_determines_is_not_known() -> None:
    assert found(lambda x: R.where(R.less_equal(x, relax.const(0.0)), x, x)) is None


def test_a_mask_beyond_the_limit_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_masks, "MOST_ELEMENTS", 35)
    assert found(causal) is None
