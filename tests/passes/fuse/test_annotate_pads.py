"""AnnotatePads: what FuseOps may not take for an elementwise operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.passes.fuse.annotate_pads import AnnotatePads
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, compute, graph, operators, random, run, weights


def patterns(module: tvm.IRModule) -> dict[str, int]:
    """The pattern of each PrimFunc of the legalized module, by its name."""
    with TARGET:
        legal = relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(module))
        annotated = AnnotatePads()(legal)
    return {v.name_hint: int(f.attrs["op_pattern"]) for v, f in annotated.functions.items() if "op_pattern" in f.attrs}


@pytest.mark.parametrize("rows", [8, "n"])
@pytest.mark.parametrize("widths", [(0, 0, 0, 1), (0, 2, 0, 0), (0, 1, 0, 1), (1, 1, 2, 2)])
def test_a_pad_is_injective(rows: Any, widths: tuple[int, ...]) -> None:
    assert patterns(graph(lambda x: op.nn.pad(x, widths), x=(rows, 6))) == {"pad": 2}


def test_what_tvm_takes_for_elementwise_stays_so_if_it_is_broadcast() -> None:
    found = patterns(graph(lambda x, y, z: op.add(op.multiply(op.exp(x), y), z), x=("n", 6), y=(1, 6), z=(6,)))
    assert found == {"tir_exp": 0, "multiply": 0, "add": 0}


def test_a_pad_behind_a_convolution_is_no_part_of_it() -> None:
    """Of rows that are one axis with their columns for the convolution, and not with those that the pad adds."""

    def build(x: Any) -> Any:
        made = op.nn.silu(op.nn.conv2d(x, weights(48, 16, 1, 1)))
        return op.nn.max_pool2d(op.nn.pad(made, (0, 0, 0, 0, 0, 1, 0, 1)), (3, 3), strides=(2, 2))

    module, x = graph(build, x=(2, 16, 32, 32)), random(2, 16, 32, 32)
    optimized = optimize(module, TARGET, CompileOptions())
    names = [name for name in operators(optimized.module) if "conv2d" in name]
    assert len(names) == 1 and "pad" not in names[0]
    np.testing.assert_allclose(run(optimized, x)[0], compute(module, x)[0], rtol=1e-4, atol=1e-4)
