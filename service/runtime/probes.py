"""Two loops that reach what a CPU can do at most: fused multiply-adds, and bytes read from memory."""
# mypy: ignore-errors
# TVMScript's buffer annotations are values, which no type checker takes.

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

__all__ = ["CHAINS", "DEPTH", "fma", "read"]

CHAINS = 16
"""Independent sums: at least FMA latency x FMAs a cycle, which is 4 x 2 on current cores."""

DEPTH = 8
"""FMAs on a sum between its load and its store: few enough for several chains to fit into the scheduler."""


def _chain(value: Any, scale: Any, dtype: str) -> Any:
    for _ in range(DEPTH):
        value = T.call_llvm_pure_intrin("llvm.fma", value, scale, scale, dtype=dtype)
    return value


def fma(threads: int, lanes: int, repeats: int) -> tirx.PrimFunc:
    """out[i] = fma(...fma(out[i], s, s)..., s, s), `repeats` x DEPTH times, over CHAINS vectors for each thread."""
    dtype, chains = f"float32x{lanes}", CHAINS

    @T.prim_func(s_tir=True)
    def fma_kernel(scale: T.Buffer((lanes,), "float32"), out: T.Buffer((threads * chains * lanes,), "float32")):
        for t in T.parallel(threads):
            for _r in T.serial(repeats):
                for a in T.unroll(chains):
                    out[T.ramp((t * chains + a) * lanes, 1, lanes)] = _chain(
                        out[T.ramp((t * chains + a) * lanes, 1, lanes)], scale[T.ramp(0, 1, lanes)], dtype
                    )

    return fma_kernel


def read(threads: int, lanes: int, steps: int) -> tirx.PrimFunc:
    """out[i] += data[j * n + i], which reads `data` once, from start to end in each thread."""
    row, chains = lanes * CHAINS, CHAINS

    @T.prim_func(s_tir=True)
    def read_kernel(data: T.Buffer((threads * steps * row,), "float32"), out: T.Buffer((threads * row,), "float32")):
        for t in T.parallel(threads):
            for i in T.serial(steps):
                for a in T.unroll(chains):
                    out[T.ramp(t * row + a * lanes, 1, lanes)] = (
                        out[T.ramp(t * row + a * lanes, 1, lanes)]
                        + data[T.ramp((t * steps + i) * row + a * lanes, 1, lanes)]
                    )

    return read_kernel
