"""Hyperbolic tangents that our vector functions do not take are the C library's on a CPU."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from relaxc.service.lowering.vector_functions import VECTOR_MATH

__all__ = ["LibraryTanh"]


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.LibraryTanh")
class LibraryTanh:
    """`tanh(x) → tanh of libm`, before loops are vectorized: a vector of them is as many calls.

    TVM computes `(1 - exp(-2x)) / (1 + exp(-2x))`, of which nothing is left for a small x. Those of 32 bits and fewer
    are `vector_math`'s in functions that it is for; CUDA's are its own.
    """

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        target = func.attrs.get("target") if func.attrs is not None else None
        if target is None or str(target.kind.name) != "llvm":
            return func
        left = ("float64",) if func.attrs.get(VECTOR_MATH) else ("float64", "float32", "float16", "bfloat16")

        def library(call: Any) -> Any:
            dtype = str(getattr(call.ty, "dtype", ""))
            if getattr(call.op, "name", "") != "tirx.tanh" or dtype not in left:
                return call
            wide, symbol = ("float64", "tanh") if dtype == "float64" else ("float32", "tanhf")
            return tirx.call_pure_extern(wide, symbol, call.args[0].astype(wide)).astype(dtype)

        return func.with_body(tvm_ffi.structural_map(func.body, (Call, library)))
