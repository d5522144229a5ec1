"""Reversed views of transposed data: FlattenBuffer read other elements, and some before the buffer."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from relaxc.schedules.ir import tir
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.hide_quotients import HideQuotients, ShowQuotients
from tests import quickly

PLACES = {
    "rows": lambda i, j: (44 - i) // 5 * 10 + (44 - i) % 5 + j * 5,
    "by a negative number": lambda i, j: (i * -1 + 44) // 5 * 10 + (i * -1 + 44) % 5 + j * 5,
    "columns": lambda i, j: i // 5 * 10 + i % 5 + (1 - j) * 5,
    "both": lambda i, j: (89 - i * 2 - j) // 10 * 10 + (89 - i * 2 - j) % 10,
}


def of(place):
    y = te.placeholder((90,), name="y")
    out = te.compute((45, 2), lambda i, j: y[place(i, j)], name="out")
    return te.create_prim_func([y, out])


@pytest.mark.parametrize("name", PLACES)
def test_the_elements_are_those_of_the_places(name):
    pipeline.register()
    module = tvm.IRModule({"main": of(PLACES[name]).with_attr("global_symbol", "main")})
    built = tvm.compile(module, target=quickly.target(), tir_pipeline=pipeline.NAME)
    given = np.arange(90, dtype=np.float32)
    result = tvm.runtime.tensor(np.zeros((45, 2), np.float32))
    built["main"](tvm.runtime.tensor(given), result)
    np.testing.assert_array_equal(result.numpy(), given[PLACES[name](*np.mgrid[0:45, 0:2])])


def test_dividends_are_shown_again_and_others_never_hidden():
    module = tvm.IRModule({"main": of(PLACES["rows"])})
    hidden = HideQuotients()(module)
    assert "relaxc_hidden" in str(hidden) and not tir.same(hidden["main"], module["main"])
    assert tir.same(ShowQuotients()(hidden)["main"], module["main"])
    plain = tvm.IRModule({"main": of(lambda i, j: (i + 3) % 45 // 5 * 10 + tirx.floormod(i, 5) + j * 5)})
    assert tir.same(HideQuotients()(plain)["main"], plain["main"])
