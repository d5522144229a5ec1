"""What the tests of blocked layouts share: a graph before and after the pass, on random numbers."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from relaxc.schedules.hardware import cpu_of
from relaxc.service.passes.layout.block_channels import BlockChannels
from relaxc.service.passes.report import OptimizeReport
from tests.passes.graphs import TARGET, compute

CPU = cpu_of(TARGET)


def weight(*shape: int) -> relax.Expr:
    """A seeded constant."""
    return relax.const(np.random.default_rng(len(shape)).standard_normal(shape).astype("float32"))


def blocked(module: tvm.IRModule) -> tuple[tvm.IRModule, str]:
    """The module after the pass, and what the report says of its layout."""
    report = OptimizeReport()
    return BlockChannels(report, CPU)(module), report.layout.reason


def inputs(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def same(module: tvm.IRModule, changed: tvm.IRModule, *arrays: np.ndarray) -> None:
    """Both modules compute the same."""
    for got, want in zip(compute(changed, *arrays), compute(module, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
