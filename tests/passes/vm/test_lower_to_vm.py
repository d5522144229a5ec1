"""finalize: the VM lowering and its memory plan."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op

from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import MemoryReport, finalize, optimize
from relaxc.service.passes.vm import lower_to_vm
from relaxc.service.request import CompileOptions
from relaxc.service.signature import DimBounds
from tests import quickly
from tests.passes.graphs import TARGET, graph, random, weights


def chain(x: relax.Var) -> relax.Expr:
    """Three kernels in a row, whose two intermediate values can share no storage with each other."""
    for index in range(3):
        x = op.nn.softmax(op.matmul(x, weights(16, 16, seed=index)), axis=-1)
    return x


def plan(rows: int | str, **bounds: DimBounds) -> MemoryReport:
    optimized = optimize(graph(chain, x=(rows, 16)), TARGET, CompileOptions())
    return finalize(optimized.module, TARGET, bounds=bounds)[1]


def test_storages_are_shared() -> None:
    optimized = optimize(graph(chain, x=(64, 16)), TARGET, CompileOptions())
    memory = finalize(optimized.module, TARGET)[1]
    row = 64 * 16 * 4
    assert optimized.report.kernel_calls >= 6
    assert memory.planned_bytes <= 3 * row
    assert memory.dynamic_storages == 0
    assert memory.to_dict()["unbounded"] == []


def test_symbolic_sizes_are_planned_at_their_upper_bounds() -> None:
    fixed, bounded = plan(64), plan("n", n=DimBounds(1, 64))
    assert bounded.planned_bytes == fixed.planned_bytes
    assert bounded.unbounded == ()
    assert bounded.dynamic_storages == 0


def test_an_unbounded_size_is_named() -> None:
    memory = plan("n", n=DimBounds(1, None))
    assert memory.unbounded == ("n",)
    assert memory.dynamic_storages > 0
    assert memory.planned_bytes == 0


def test_a_plan_that_is_too_large_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_to_vm, "PLAN_MAX_BYTES", 1 << 24)
    memory = plan("n", n=DimBounds(1, 1 << 20))
    assert memory.planned_bytes == 0
    assert memory.bytes_at_upper_bounds is not None
    assert memory.bytes_at_upper_bounds > 1 << 24


def test_an_end_that_stands_for_any_is_no_bound_of_a_plan() -> None:
    memory = plan("n", n=DimBounds(1, 10**9))
    assert memory.planned_bytes == 0
    assert memory.bytes_at_upper_bounds is None


@pytest.mark.parametrize("upper", [None, 8])
def test_one_module_runs_several_sizes(upper: int | None) -> None:
    optimized = optimize(graph(chain, x=("n", 16)), TARGET, CompileOptions())
    module, _ = finalize(optimized.module, TARGET, bounds={"n": DimBounds(1, upper)})
    machine = quickly.machine_of(relax.build(module, quickly.target(), relax_pipeline=None))
    packed = tvm_ffi.convert(list(optimized.weights.values()))
    fixed = {}
    for rows in (8, 1, 5, 8):
        x = random(8, 16)[:rows]
        fixed[rows] = machine["main"](tvm.runtime.tensor(np.ascontiguousarray(x)), packed)[0].numpy()
        np.testing.assert_allclose(fixed[rows], fixed[8][:rows], rtol=1e-5)


def test_bfloat16_passes_the_boundary() -> None:
    optimized = optimize(graph(op.negative, x=("bfloat16", (3,))), TARGET, CompileOptions())
    module, _ = finalize(optimized.module, TARGET)
    machine = quickly.machine_of(relax.build(module, quickly.target(), relax_pipeline=None))
    x = np.array([1, -2, 3], ml_dtypes.bfloat16)
    got = machine["main"](tvm.runtime.tensor(x), tvm_ffi.convert([]))[0].numpy()
    np.testing.assert_array_equal(got, -x)


@pytest.mark.parametrize(
    ("target", "rows", "most", "captured"),
    [
        ("cuda-sm90", 64, None, True),
        ("cuda-sm90", "n", None, False),
        ("cuda-sm90", "n", 32, True),
        ("cuda-sm90", "n", 65, False),
        ("", 64, None, False),
    ],
)
def test_kernels_are_one_cuda_graph(target: str, rows: int | str, most: int | None, captured: bool) -> None:
    """The first kernel reads an input and the last writes an output; those between are captured.

    So are those of a size that is known at the call, if calls have few sizes: each has a graph.
    """
    to = to_tvm(resolve(target)) if target else TARGET
    optimized = optimize(graph(chain, x=(rows, 16)), to, CompileOptions())
    lowered, _ = finalize(optimized.module, to, bounds={"n": DimBounds(1, most)} if most else None)
    calls: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.ExternFunc):
            calls.append(str(expr.global_symbol))

    relax.analysis.post_order_visit(lowered["main"], visit)
    assert ("vm.builtin.cuda_graph.run_or_capture" in calls) is captured
