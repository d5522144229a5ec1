"""Small Relax modules from an expression, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from relaxc.service.passes import Optimized, finalize
from relaxc.service.passes.common.constants import constant, numpy_dtype
from relaxc.service.passes.common.rewrite import op_name
from tests import quickly

__all__ = ["TARGET", "assert_becomes", "assert_unchanged", "compute", "graph", "operators", "ops", "run", "weights"]

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def graph(build: Callable[..., Any], **inputs: Any) -> tvm.IRModule:
    """A module whose `main` returns `(build(*inputs),)`, or the tuple that `build` gives.

    Each input is its shape, or (dtype, shape); a name in a shape is a symbolic size.
    """
    builder, sizes = relax.BlockBuilder(), {}

    def parameter(name: str, given: Any) -> relax.Var:
        dtype, shape = given if len(given) == 2 and isinstance(given[1], tuple) else ("float32", given)
        dims = [sizes.setdefault(d, tvm.tirx.Var(d, "int64")) if isinstance(d, str) else d for d in shape]
        return relax.Var(name, relax.TensorType(dims, dtype))

    parameters = [parameter(name, given) for name, given in inputs.items()]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = build(*parameters)
            results = result if isinstance(result, tuple) else (result,)
            output = builder.emit_output(relax.Tuple([builder.emit(each) for each in results]))
        builder.emit_func_output(output)
    return relax.transform.CanonicalizeBindings()(builder.get())


def weights(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """A constant of small random numbers."""
    array = np.random.default_rng([seed, *shape]).standard_normal(shape) * 0.3
    return constant(array, dtype)


def assert_becomes(given: tvm.IRModule, one_pass: Any, expected: tvm.IRModule) -> None:
    """The pass makes `expected` of `given`, names of variables aside."""
    with TARGET:
        got = relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(one_pass(given)))
    tvm.ir.assert_structural_equal(got["main"], expected["main"])


def assert_unchanged(given: tvm.IRModule, one_pass: Any) -> None:
    """The pass leaves the module as it is."""
    assert_becomes(given, one_pass, given)


def ops(module: tvm.IRModule) -> list[str]:
    """The operators that `main` calls, in order, without `relax.`."""
    calls = (binding.value for block in module["main"].body.blocks for binding in block.bindings)
    return [call.op.name.removeprefix("relax.") for call in calls if isinstance(call, relax.Call)]


def operators(module: tvm.IRModule) -> list[str]:
    """The operators and PrimFuncs that `main` calls, in order."""
    found: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            name = op_name(expr)
            found.append(str(expr.args[0].name_hint) if name == "relax.call_tir" else name.removeprefix("relax."))

    relax.analysis.post_order_visit(module["main"], visit)
    return found


def compute(module: tvm.IRModule, *inputs: Any) -> list[Any]:
    """What a module of operators computes, without any pass but legalization."""
    from relaxc.service.passes import optimize
    from relaxc.service.request import CompileOptions

    return run(optimize(module, TARGET, CompileOptions(opt_level=0)), *inputs)


def run(optimized: Optimized, *inputs: Any, lowering: str = "default") -> list[Any]:
    """What an optimized module computes, its PrimFuncs as they are; `lowering` names TVM's passes, or ours."""
    module, _ = finalize(optimized.module, TARGET)
    built = relax.build(module, quickly.target(), relax_pipeline=None, tir_pipeline=lowering)
    machine = quickly.machine_of(built)
    tensors: Sequence[Any] = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in inputs]
    results = machine["main"](*tensors, tvm_ffi.convert(list(optimized.weights.values())))
    return [result.numpy() for result in results]


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """An array of standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))
