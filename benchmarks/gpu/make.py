"""The kernels of the cases as libraries, made without a GPU."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import Case

__all__ = ["make", "prim_func"]


def prim_func(case: Case) -> Any:
    """The PrimFunc of `case` as the graph passes make it: the product, and what is fused with it."""
    import tvm
    from tvm import relax

    shapes = [(case.batch, case.m, case.k), (case.batch, *((case.k, case.n) if case.n_major else (case.n, case.k)))]
    dtypes = [case.dtype, case.dtype]
    bias_dtype = case.dtype if case.epilogue == "low" else "float32"
    if case.epilogue.startswith("bias") or case.epilogue == "low":
        shapes, dtypes = [*shapes, (case.n,)], [*dtypes, bias_dtype]
    if case.epilogue in ("bias_residual", "low"):
        shapes, dtypes = [*shapes, (case.batch, case.m, case.n)], [*dtypes, case.dtype]
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, d)) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
    block = relax.BlockBuilder()
    with block.function("main", inputs):
        with block.dataflow():
            result = block.emit_output(block.normalize(_expression(case, block, inputs)))
        block.emit_func_output(result)
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    passes += [relax.transform.FuseOps(), relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    module = tvm.ir.transform.Sequential(passes)(block.get())
    (func,) = (func for _, func in module.functions_items() if isinstance(func, tvm.tirx.PrimFunc))
    return func


def _by_columns(a: Any, b: Any, dtype: str) -> Any:
    """The product with a right operand that is stored by columns."""
    from tvm import te, tirx

    k = te.reduce_axis((0, a.shape[2]), "k")
    return te.compute(
        (a.shape[0], a.shape[1], b.shape[1]),
        lambda i, m, n: te.sum(tirx.Cast(dtype, a[i, m, k]) * tirx.Cast(dtype, b[i, n, k]), axis=k),
        name="matmul",
    )


def _expression(case: Case, block: Any, inputs: list[Any]) -> Any:
    from tvm import relax
    from tvm.relax import op

    a, b, *rest = inputs
    sums = case.dtype if case.epilogue == "low" else "float32"
    value = op.matmul(a, b, out_dtype=sums) if case.n_major else block.emit_te(_by_columns, a, b, sums)
    if case.epilogue == "scale":
        value = op.multiply(value, relax.const(0.125, "float32"))
    if case.epilogue == "relu":
        value = op.nn.relu(value)
    if rest:
        value = op.add(value, rest[0])
    if case.epilogue == "bias_gelu":
        value = op.nn.gelu(value)
    if case.epilogue == "bias_tanh_gelu":
        value = op.nn.gelu_tanh(value)
    if case.epilogue == "bias_silu":
        value = op.nn.silu(value)
    if case.epilogue in ("bias_residual", "low"):
        value = op.add(value, rest[1] if case.epilogue == "low" else op.astype(rest[1], "float32"))
    return value if case.out == sums else op.astype(value, case.out)


def make(cases: list[Case], folder: Path, *, jobs: int = 1) -> None:
    """Writes `folder/NUMBER.so` for each case, and `cases.json`; what is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    work = [(index, case, folder) for index, case in enumerate(cases)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(_made, work))
    (folder / "cases.json").write_text(json.dumps(rows))


def _made(work: tuple[int, Case, Path]) -> dict[str, Any]:
    from schedules.cuda.gemm.gemm_sm90 import GemmSm90
    from schedules.template import Declined
    from service.lowering.apply import finish
    from service.lowering.build import build_kernel
    from service.lowering.target import resolve, to_tvm

    index, case, folder = work
    spec, rule, func = resolve("cuda-sm90"), GemmSm90(), prim_func(case)
    target = to_tvm(spec)
    space = rule.choices(func, target)
    if isinstance(space, Declined):
        raise ValueError(f"{case}: {space.reason}")
    wanted = case.parameters
    given = {name: value if value in space[name] else max(space[name]) for name, value in (wanted or {}).items()}
    scheduled = rule.apply(func, target, given or None)
    assert not isinstance(scheduled, Declined)
    out = folder / f"{index}.so"
    if not out.exists():
        build_kernel(finish(scheduled.func, spec, 2), spec, out)
    return {**asdict(case), "parameters": dict(scheduled.parameters), "timed": case.timed}
