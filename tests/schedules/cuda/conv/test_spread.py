"""`cuda.spread`: what it takes and declines."""

from __future__ import annotations

from functools import partial

import pytest
import tvm
from tvm import relax

from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.conv import compute
from relaxc.schedules.cuda.conv.compute import Windows
from relaxc.schedules.cuda.conv.spread import Spread
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.cuda.images import prim_func

TARGET = to_tvm(resolve("cuda-sm90"))
RULE = Spread()


def spread(dtype: str, out: str = "float16", lines: int = 13):
    """The PrimFunc that spreads images of 3 channels and lines of 17 pixels."""
    block = relax.BlockBuilder()
    image = relax.Var("x", relax.TensorType((2, 3, lines, 17), dtype))
    with block.function("main", [image]):
        with block.dataflow():
            function = partial(compute.spread, left=1, width=20, dtype=out)
            result = block.emit_output(block.call_te(function, image, primfunc_name_hint="spread"))
        block.emit_func_output(result)
    (func,) = (func for _, func in block.get().functions_items() if isinstance(func, tvm.tirx.PrimFunc))
    return func


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_it_takes_images_of_floats(dtype):
    made = RULE.apply(spread(dtype), TARGET)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs and made.parameters == {}
    with pytest.raises(ValueError, match="parameters"):
        RULE.apply(spread(dtype), TARGET, {"strip": 1})


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (lambda: spread("uint8"), "not of floats"),
        (lambda: spread("float32", "float64"), "not of floats"),
        (lambda: spread("float16", lines=10_000_000), "2^31"),
        (lambda: prim_func(Windows("max", (2, 2)), (1, 4, 4, 8)), "spread"),
    ],
)
def test_it_declines(func, reason):
    result = RULE.apply(func(), TARGET)
    assert isinstance(result, Declined) and reason in result.reason
