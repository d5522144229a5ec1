"""Products of a row with weights in blocks, from memory, beside a loop that reads as many bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax

from benchmarks.kernels.compiled import compile_op
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.rounding import block_of, quantized
from relaxc.service.runtime import peak, probes
from relaxc.service.runtime.threads import use_threads

__all__ = ["SHAPES", "Timed", "timed"]

SHAPES = ((768, 768), (768, 3072), (3072, 768), (768, 50257), (2048, 8192), (4096, 4096), (4096, 11008))
"""Depth and columns: GPT-2's, and larger ones."""

_COLD_BYTES = 160 << 20
"""Of all copies of the weights that take turns, and of what the loop reads: far more than a last cache."""


@dataclass(frozen=True)
class Timed:
    """A product: the bytes of its packed weights, the seconds of a run, and of reading as many bytes beside it.

    `limit` is their part of one long loop; `call` is a call that reads as many and does nothing else, which begins on
    cold lines and wakes the threads for these bytes alone.
    """

    size_bytes: int
    seconds: float
    limit: float
    call: float

    @property
    def gbps(self) -> float:
        """Bytes of weights a second."""
        return self.size_bytes / self.seconds / 1e9

    @property
    def of_bandwidth(self) -> float:
        """Of the bandwidth that was measured at the same time."""
        return self.limit / self.seconds

    @property
    def of_call(self) -> float:
        """Of the bandwidth of a call that reads as many bytes."""
        return self.call / self.seconds


def timed(depth: int, columns: int, bits: int, threads: int, rounds: int, rows: int = 1) -> Timed:
    """Return the medians of both, in turns. AssertionError where the product is wrong."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((columns, depth), dtype=np.float32)
    codes, scales = quantized(weights.reshape(-1, block_of(depth) or depth), bits)
    x = rng.standard_normal((rows, depth), dtype=np.float32)

    def make(data: Any, code: Any, scale: Any) -> Any:
        steps = relax.op.dequantize(code, scale, relax.const(np.int8(0)), 0, "float32")
        return relax.op.matmul(data, relax.op.permute_dims(relax.op.reshape(steps, (columns, depth)), [1, 0]))

    use_threads(threads)
    compiled = compile_op(make, [x], [codes, scales])
    want = x @ (codes * scales[:, None]).reshape(columns, depth).T
    np.testing.assert_allclose(compiled.outputs[0], want, rtol=0, atol=2e-5 * np.abs(want).max())
    (kernel,) = compiled.kernels
    assert kernel.row["rule"] == "cpu.matmul_blocks", kernel.row
    data, *packed, result = kernel.tensors
    size = sum(int(np.prod(part.shape)) * np.dtype(str(part.dtype)).itemsize for part in packed)
    turns = [
        (data, *(tvm.runtime.tensor(part.numpy()) for part in packed), result) for _ in range(_COLD_BYTES // size + 1)
    ]
    run, read, call = _calls(kernel.function, turns), _reader(threads), _reader(threads, size)
    times = [(_once(run, len(turns)), _once(read, 1), _once(call, len(turns))) for _ in range(rounds)]
    seconds, reading, calling = (median(each) for each in zip(*times, strict=True))
    return Timed(size, seconds, reading * size / _COLD_BYTES, calling)


def _calls(function: Callable[..., Any], turns: list[tuple[Any, ...]]) -> Callable[[], Any]:
    arguments = cycle(turns)
    return lambda: function(*next(arguments))


def _once(run: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times


def _reader(threads: int, size: int = _COLD_BYTES) -> Callable[[], Any]:
    """Adds up `size` bytes, each thread its part from start to end; they are not those of the calls before."""
    lanes, _ = peak.vectors()
    row = probes.CHAINS * lanes
    steps = max(1, size // 4 // threads // row)
    function = probes.build({"read": probes.read(threads, lanes, steps, 1)}, to_tvm(resolve("auto")))["read"]
    sums = tvm.runtime.tensor(np.zeros(threads * row, np.float32))
    zeros = np.zeros(threads * steps * row, np.float32)
    return _calls(function, [(tvm.runtime.tensor(zeros), sums) for _ in range(-(-_COLD_BYTES // size))])
