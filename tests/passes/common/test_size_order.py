"""Sizes that no tensor has by themselves are passed in an order of the model's, not of a set of pointers."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax, te, tirx
from tvm.relax import block_builder

from relaxc.service.passes.common.size_order import sizes_in_order

ROUNDS = 24
"""Two sizes in the order of a set: that each of so many rounds has them alike by chance is one case in 8 million."""


def _kernel(names: str) -> tuple[list[str], list[str]]:
    """The parameters of a kernel of a sum of sizes, and the arguments of its call."""
    sizes = [tirx.Var(name, "int64") for name in names]
    total = sum(sizes[1:], sizes[0])
    x = relax.Var("x", relax.TensorType([total], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, relax.Var("s", relax.ShapeType(sizes))]):
        call = builder.call_te(lambda a: te.compute(a.shape, lambda i: a[i] + 1.0, name="up"), x)
        builder.emit_func_output(builder.emit(call))
    kernel = next(f for f in builder.get().functions.values() if isinstance(f, tirx.PrimFunc))
    return [str(param.name) for param in kernel.params], [str(arg.name) for arg in call.args[1].fields]


@pytest.mark.parametrize("names", ["ab", "ba", "dacb"])
def test_sizes_come_as_the_shape_names_them(names: str) -> None:
    with sizes_in_order():
        for _ in range(ROUNDS):
            params, arguments = _kernel(names)
            assert params[1:-1] == list(names)
            assert arguments == ["x", *names]


def test_outside_and_after_an_error_the_builder_is_tvms() -> None:
    before: Any = block_builder.gen_call_tir_inputs
    with pytest.raises(ZeroDivisionError), sizes_in_order(), sizes_in_order():
        assert block_builder.gen_call_tir_inputs is not before
        raise ZeroDivisionError
    assert block_builder.gen_call_tir_inputs is before
