"""Compiles random kernels as the product does, but products are scaled where nothing should follow them."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

from benchmarks.gpu import gemm_cases
from benchmarks.gpu.fuzz import compile_child


def scaled(case: gemm_cases.Case) -> object:
    """Return the PrimFunc of another case."""
    return gemm_cases.prim_func(replace(case, epilogue="scale"))


if __name__ == "__main__":
    compile_child.SUITES = {"gemm": SimpleNamespace(prim_func=scaled)}
    sys.exit(compile_child.main())
