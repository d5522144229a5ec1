"""Which contractions get 16-bit operands on which CPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tvm import tirx
from tvm.relax import op

from relaxc.schedules.plan import plan_of
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions, Precision
from tests.passes.graphs import constant, graph

DRAW = np.random.default_rng(0)
TAPS = DRAW.standard_normal((64, 64, 3, 3)).astype("float32")
NARROW = json.dumps({**resolve("sapphirerapids").to_dict(), "vector_bits": 256})
WEIGHTS = DRAW.standard_normal((64, 64)).astype("float32")


@pytest.mark.parametrize(
    ("target", "convolution"),
    [("znver4", "bfloat16"), ("sapphirerapids", "bfloat16"), (NARROW, "float32"), ("x86-64-v4", "float32")],
)
def test_a_convolution_stays_in_fp32_where_pairs_take_longer(target: str, convolution: str) -> None:
    """Sapphire Rapids has AMX for sums in vectors of 512 bits, and VDPBF16PS at half of float32's rate."""
    given = graph(
        lambda x, y: op.add(op.mean(op.nn.conv2d(x, constant(TAPS), padding=1)), op.matmul(y, constant(WEIGHTS))),
        x=("float32", (1, 64, 28, 28)),
        y=("float32", (32, 64)),
    )
    made = optimize(given, to_tvm(resolve(target)), CompileOptions(precision=Precision.BF16)).module
    plans = [plan for f in made.functions.values() if isinstance(f, tirx.PrimFunc) and (plan := plan_of(f)) is not None]
    found = {plan.operator.kind: plan.operator.operands[0] for plan in plans}
    assert found == {"conv2d": convolution, "matmul": "bfloat16"}
