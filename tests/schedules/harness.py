"""Runs a Relax expression through scheduling and code generation, to be compared with numpy or torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from relaxc.service.lowering import pipeline, schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.request import TargetSpec
from tests.guarded import guarded_tensor

pipeline.register()
T = relax.transform

# Relative to the largest value of the result, as sums are made in another order.
TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "float16": 4e-3, "bfloat16": 2e-2}


@dataclass
class Ran:
    """The outputs of a run, the schedule report, and the scheduled module."""

    outputs: list[np.ndarray]
    report: list[dict[str, Any]]
    module: Any

    @property
    def rules(self) -> list[str]:
        """The rules that won, in order."""
        return [row["rule"] for row in self.report]


def legalized(build: Callable[..., Any], shapes: Sequence[Sequence[Any]], dtypes: Sequence[str], *, fuse: bool = True):
    """A module whose `main` is `build(*inputs)`, with one PrimFunc for each fused group."""
    names: dict[str, Any] = {}

    def dim(value: Any) -> Any:
        return names.setdefault(value, tvm.tirx.Var(value, "int64")) if isinstance(value, str) else value

    inputs = [
        relax.Var(f"x{i}", relax.TensorType([dim(d) for d in shape], dtype))
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    block = relax.BlockBuilder()
    with block.function("main", inputs):
        with block.dataflow():
            result = block.emit_output(block.normalize(build(*inputs)))
        block.emit_func_output(result)
    passes = [relax.backend.DispatchSortScan(), T.LegalizeOps(), T.AnnotateTIROpPattern()]
    passes += [T.FuseOps(), T.FuseTIR()] if fuse else []
    with to_tvm(resolve("x86-64-v3")):
        return tvm.ir.transform.Sequential([*passes, T.DeadCodeElimination()])(block.get())


def run(
    build: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    *,
    shapes: Sequence[Sequence[Any]] | None = None,
    spec: TargetSpec | None = None,
    opt_level: int = 2,
    fuse: bool = True,
) -> Ran:
    """Schedules, compiles and runs `build` on `arrays`; `shapes` may name symbolic dims."""
    return run_many(build, [arrays], shapes=shapes, spec=spec, opt_level=opt_level, fuse=fuse)[0]


def run_many(
    build: Callable[..., Any],
    calls: Sequence[Sequence[np.ndarray]],
    *,
    shapes: Sequence[Sequence[Any]] | None = None,
    spec: TargetSpec | None = None,
    opt_level: int = 2,
    fuse: bool = True,
) -> list[Ran]:
    """`run` for several inputs to one compiled module."""
    spec = spec or resolve("auto")
    target = to_tvm(spec)
    first = calls[0]
    module = legalized(build, shapes or [a.shape for a in first], [str(a.dtype) for a in first], fuse=fuse)
    scheduled = schedule(module, spec, opt_level=opt_level)
    finalize = [
        T.ToNonDataflow(), T.RemovePurityChecking(), T.CallTIRRewrite(), T.StaticPlanBlockMemory(),
        T.LowerAllocTensor(), T.KillAfterLastUse(), T.LowerRuntimeBuiltin(), T.ComputePrimValue(),
        T.VMShapeLower(), T.AttachGlobalSymbol(),
    ]  # fmt: skip
    with target:
        ready = tvm.ir.transform.Sequential(finalize)(scheduled.module)
    machine = relax.VirtualMachine(
        relax.build(ready, target, relax_pipeline=None, tir_pipeline=pipeline.NAME), tvm.cpu()
    )
    ran = []
    for arrays in calls:
        machine["main"](*[guarded_tensor(a, "start") for a in arrays])
        result = machine["main"](*[guarded_tensor(a, "end") for a in arrays])
        outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        ran.append(Ran([output.numpy() for output in outputs], scheduled.report, scheduled.module))
    return ran


def assert_close(got: np.ndarray, want: Any, tolerance: float | None = None) -> None:
    """Equal up to rounding: the error relative to the largest value; infinities and NaN at the same places."""
    want = np.asarray(want)
    assert got.shape == want.shape, (got.shape, want.shape)
    if got.dtype.kind not in "fV" and str(got.dtype) != "bfloat16":
        np.testing.assert_array_equal(got, want)
        return
    limit = tolerance or TOLERANCE[str(got.dtype)]
    a, b = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    np.testing.assert_array_equal(np.isinf(a), np.isinf(b))
    finite = np.isfinite(b)
    if finite.any():
        scale = max(1e-6, float(np.abs(b[finite]).max()))
        assert float(np.abs(a - b)[finite].max()) <= limit * scale, float(np.abs(a - b)[finite].max()) / scale
