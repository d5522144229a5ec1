"""A rung of a ladder: a schedule of one computation, built and run on given arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import te

from benchmarks.kernels.compiled import compile_op
from benchmarks.kernels.timing import counted
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm

__all__ = ["Array", "Built", "Rung", "from_schedule", "from_template", "time_ms"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Built:
    """Something to time: `run` does the work once, `result` is what it gave, in the plain layout."""

    run: Callable[[], Any]
    result: Callable[[], Array]
    how: str = ""
    """The rule and the parameters of a template."""


@dataclass(frozen=True)
class Rung:
    """A step: what is new in it, and what builds it."""

    name: str
    what: str
    build: Callable[[], Built]


def from_schedule(
    tensors: Sequence[te.Tensor],
    arrays: Sequence[Array],
    schedule: Callable[[Any], None],
    plain: Callable[[Array], Array] = lambda array: array,
) -> Built:
    """The computation of the last of `tensors` from the others, which have these arrays, under a schedule."""
    pipeline.register()
    sch = tvm.s_tir.Schedule(te.create_prim_func(list(tensors)))
    schedule(sch)
    module = tvm.IRModule({"main": sch.mod["main"].with_attr("global_symbol", "main")})
    library = tvm.tirx.build(module, target=to_tvm(resolve("auto")), pipeline=pipeline.NAME)
    inputs = [tvm.runtime.tensor(array) for array in arrays]
    out = tvm.runtime.tensor(np.zeros([int(extent) for extent in tensors[-1].shape], np.float32))
    function = library["main"]
    return Built(lambda: function(*inputs, out), lambda: plain(out.numpy()))


def from_template(make: Callable[..., Any], inputs: Sequence[Array], weights: Sequence[Array]) -> Built:
    """The operator as a compile makes it, without the changes of layout at its ends."""
    compiled = compile_op(make, inputs, weights)
    kernels = counted(compiled.kernels)
    names = {"function", "rule", "parameters"}
    rows = [{name: kernel.row[name] for name in names} for kernel in kernels]
    how = "; ".join(f"{row['rule']} {' '.join(f'{k}={v}' for k, v in row['parameters'].items())}" for row in rows)

    def run() -> None:
        for kernel in kernels:
            kernel.function(*kernel.tensors)

    return Built(run, lambda: compiled.outputs[0], how)


def time_ms(run: Callable[[], Any], seconds: float = 0.3) -> float:
    """The median time; a run that is longer than `seconds` is timed once."""
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    if first > seconds:
        return first * 1e3
    times = []
    for _ in range(max(3, math.floor(seconds / first))):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times) * 1e3
